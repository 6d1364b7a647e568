"""Carry out `phloem bench overlap`: depths in turn, each run with processes of its own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import Process

from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions

from .figures import WARM_STEPS, Idle, full_steps, idle, middle
from .processes import ProcessFailed, failure, nats_server, running, scheduler_command, worker_command
from .sink import Sink, open_sink

MODEL = "stand-in"
CONNECT_S = 5.0
STAND_IN_CONTEXT = 8192
STAND_IN_TOKENS = 8192 * 16
"""What the stand-in claims to hold: see `phloem_gpu_worker.stand_in`."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OverlapPlan:
    """What to measure."""

    rows: int = 64
    step_ms: float = 8.0
    steps: int = 600
    """Full steps to count per run."""
    depths: tuple[int, ...] = (2, 1)
    rounds: int = 3
    prompt_tokens: int = 64
    nats_url: str | None = None
    """A broker that runs already; None = one of our own."""
    seed: int = 0

    def __post_init__(self) -> None:
        tokens = self.prompt_tokens + self.steps + WARM_STEPS
        if tokens > STAND_IN_CONTEXT or self.rows * tokens > STAND_IN_TOKENS:
            raise ValueError(
                f"{self.rows} rows of {tokens} tokens are more than the stand-in holds "
                f"({STAND_IN_CONTEXT} per row, {STAND_IN_TOKENS} in all); ask for fewer --steps"
            )


@dataclass(frozen=True, slots=True)
class OverlapTurn:
    """One run."""

    round: int
    depth: int
    idle: Idle


@dataclass(frozen=True, slots=True)
class OverlapOutcome:
    """All runs, and the median per depth."""

    turns: list[OverlapTurn]

    def medians(self) -> dict[int, Idle]:
        depths = dict.fromkeys(turn.depth for turn in self.turns)
        return {depth: middle([turn.idle for turn in self.turns if turn.depth == depth]) for depth in depths}


async def overlap(plan: OverlapPlan, on_turn: Callable[[OverlapTurn], None] = lambda turn: None) -> OverlapOutcome:
    """Measure each depth ``rounds`` times, in turn.

    Raises:
        ProcessFailed, RequestsFailed, TooFewSteps, TimeoutError, BusError: a run could not be done.
    """
    turns: list[OverlapTurn] = []
    with tempfile.TemporaryDirectory(prefix="phloem-overlap-") as folder:
        async with _broker(plan, Path(folder)) as url:
            for index in range(plan.rounds):
                for depth in plan.depths if index % 2 == 0 else reversed(plan.depths):
                    turn = OverlapTurn(index, depth, await _run(plan, url, depth, len(turns), Path(folder)))
                    turns.append(turn)
                    on_turn(turn)
    return OverlapOutcome(turns)


@asynccontextmanager
async def _broker(plan: OverlapPlan, folder: Path) -> AsyncIterator[str]:
    if plan.nats_url is not None:
        yield plan.nats_url
    else:
        async with nats_server(folder) as url:
            yield url


async def _run(plan: OverlapPlan, url: str, depth: int, number: int, folder: Path) -> Idle:
    """One run. A namespace of its own keeps it apart from the last one's processes, which may still be saying goodbye."""
    namespace = f"overlap-{number}"
    model = f"{MODEL}:{plan.step_ms:g}"
    async with AsyncExitStack() as stack:
        commands = {
            "worker": worker_command(url, namespace, model, plan.rows),
            "scheduler": scheduler_command(url, namespace, model, depth),
        }
        processes = {
            name: await stack.enter_async_context(running(name, command, folder)) for name, command in commands.items()
        }
        sink = await _unless_one_ends(processes, folder, lambda: _drive(plan, url, namespace, number))
    return idle(full_steps(sink.steps, plan.rows), plan.step_ms)


async def _drive(plan: OverlapPlan, url: str, namespace: str, number: int) -> Sink:
    async with AsyncExitStack() as stack:
        buses = [await _connect(url, name) for name in ("sink", "tap")]
        for bus in buses:
            stack.push_async_callback(bus.aclose)
        sink = await stack.enter_async_context(
            open_sink(*buses, namespace=namespace, model=MODEL, seed=plan.seed + number)
        )
        tokens = plan.steps + WARM_STEPS
        await sink.run_requests(plan.rows, plan.prompt_tokens, tokens, plan.seed, 60 + 4 * tokens * plan.step_ms / 1e3)
        return sink


async def _connect(url: str, name: str) -> NatsBus:
    try:
        with anyio.fail_after(CONNECT_S):
            return await NatsBus.connect(NatsOptions(url, name=f"overlap-{name}"))
    except TimeoutError:
        raise ProcessFailed(f"no broker answers at {url}") from None


async def _unless_one_ends(processes: dict[str, Process], folder: Path, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work``; if one of the processes ends meanwhile, its log instead (`ProcessFailed`)."""
    result: list[T] = []
    failures: list[Exception] = []

    async def watch(name: str, process: Process) -> None:
        await process.wait()
        failures.append(failure(name, process, folder))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for name, process in processes.items():
            tasks.start_soon(watch, name, process)
        try:
            result.append(await work())
        except Exception as error:  # kept out of the group, which would wrap it
            failures.append(error)
        tasks.cancel_scope.cancel()
    if result:
        return result[0]
    raise _plain(failures)


def _plain(failures: Sequence[Exception]) -> Exception:
    """What to show: the process that ended, if one did, else the first error inside the groups that wrap it."""
    error = next((one for one in failures if isinstance(one, ProcessFailed)), failures[0])
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
