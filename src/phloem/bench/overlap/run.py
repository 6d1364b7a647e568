"""Measure how idle a device is: cases and depths in turn, each run with processes of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions

from .figures import WARM_STEPS, Idle, full_steps, idle, middle
from .plan import PROMPT_TOKENS, Case, OverlapPlan
from .processes import WORKER_NICE, Broker, ProcessFailed, nats_server, running, scheduler_command, worker_command
from .sink import Sink, open_sink
from .usage import Usage, between
from .watching import unless_one_ends

MODEL = "stand-in"
"""Its name for clients."""
SINK = "sink"
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One run."""

    round: int
    case: Case
    depth: int
    idle: Idle
    cores: dict[str, float]
    """Cores' worth of CPU time that each process used; ours, who plays the gateway and the detokeniser, under `SINK`."""


def cores(turns: list[Turn], case: Case, depth: int) -> dict[str, float]:
    """Medians of `Turn.cores` over rounds."""
    found = [turn.cores for turn in turns if (turn.case, turn.depth) == (case, depth)]
    return {name: median(one[name] for one in found) for name in found[0]}


def medians(turns: list[Turn]) -> dict[tuple[Case, int], Idle]:
    """Over rounds, by case and depth, in the order of their first runs."""
    keys = dict.fromkeys((turn.case, turn.depth) for turn in turns)
    return {key: middle([turn.idle for turn in turns if (turn.case, turn.depth) == key]) for key in keys}


async def measure(plan: OverlapPlan, folder: Path, on_turn: Callable[[Turn], None] = lambda turn: None) -> list[Turn]:
    """Measure each case at each depth ``rounds`` times, in turn.

    Args:
        folder: where logs are kept.
        on_turn: told each run when it is over.

    Raises:
        ProcessFailed, RequestsFailed, TooFewSteps, TimeoutError, BusError: a run could not be done.
    """
    turns: list[Turn] = []
    async with _broker(plan, folder) as broker:
        for index in range(plan.rounds):
            for case in plan.cases:
                for depth in plan.depths if index % 2 == 0 else reversed(plan.depths):
                    found, cores = await _run(case, depth, broker, plan.seed + len(turns), folder)
                    turns.append(Turn(index, case, depth, found, cores))
                    on_turn(turns[-1])
    return turns


@asynccontextmanager
async def _broker(plan: OverlapPlan, folder: Path) -> AsyncIterator[Broker]:
    if plan.nats_url is not None:
        yield Broker(plan.nats_url)
    else:
        async with nats_server(folder) as broker:
            yield broker


async def _run(case: Case, depth: int, broker: Broker, seed: int, folder: Path) -> tuple[Idle, dict[str, float]]:
    """One run. A namespace of its own keeps it apart from the last one's processes, which may still be saying goodbye."""
    namespace = f"overlap-{seed}"
    worker = worker_command(broker.url, namespace, case.model, MODEL, case.rows)
    scheduler = scheduler_command(broker.url, namespace, MODEL, depth, case.rows)
    async with AsyncExitStack() as stack:
        processes = {} if broker.process is None else {"nats-server": broker.process}
        processes["worker"] = await stack.enter_async_context(running("worker", worker, folder, WORKER_NICE))
        processes["scheduler"] = await stack.enter_async_context(running("scheduler", scheduler, folder))
        pids = {SINK: os.getpid(), **{name: process.pid for name, process in processes.items()}}
        sink, cores = await unless_one_ends(processes, folder, lambda: _drive(case, broker.url, namespace, seed, pids))
    return idle(full_steps(sink.steps, case.rows), case.step_ms), cores


async def _drive(
    case: Case, url: str, namespace: str, seed: int, pids: Mapping[str, int]
) -> tuple[Sink, dict[str, float]]:
    async with AsyncExitStack() as stack:
        buses = [await _connect(url, name) for name in ("sink", "tap")]
        for bus in buses:
            stack.push_async_callback(bus.aclose)
        sink = await stack.enter_async_context(open_sink(*buses, namespace=namespace, model=MODEL, seed=seed))
        tokens = case.steps + WARM_STEPS
        began = Usage(pids)
        await sink.run_requests(case.rows, PROMPT_TOKENS, tokens, seed, 60 + 4 * tokens * case.step_ms / 1e3)
        ended = Usage(pids)
        wall_s = ended.at - began.at
        return sink, {name: used / wall_s for name, used in between(began.cpu_s, ended.cpu_s).items()}


async def _connect(url: str, name: str) -> NatsBus:
    try:
        with anyio.fail_after(CONNECT_S):
            return await NatsBus.connect(NatsOptions(url, name=f"overlap-{name}"))
    except TimeoutError:
        raise ProcessFailed(f"no broker answers at {url}") from None
