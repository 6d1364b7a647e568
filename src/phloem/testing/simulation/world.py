"""One run: the deployment, its clients, its faults, and what must hold all along and in the end."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import torch
import trio
import trio.testing
from anyio.abc import TaskGroup

from phloem_scheduler.core import Core

from .bus import Network, SimBroker
from .client import Client, Outcome
from .nemesis import Nemesis
from .process import Process
from .scenario import FAULTS_S, ROLES, WARM_UP_S, Scenario
from .services import maker
from .trace import Entry, Trace

LIVENESS_S = 60.0
"""After everything is whole again, every call has its answer within this time."""
SETTLE_S = 12.0
"""And everything has been given back within this time: whatever is named twice no more, every 5 s, is dropped."""
LOOK_S = 0.1
"""How often invariants are looked at."""
WORK_S = (0.001, 0.01)
"""(least, most) a piece of blocking work takes that is no step."""


@dataclass(slots=True)
class Result:
    """What a run came to."""

    scenario: Scenario
    complaints: list[str] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By number of the call."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often what happened that a sweep wants to have seen."""
    digest: str = ""
    entries: list[Entry] = field(default_factory=list)
    seconds: float = 0.0
    """Simulated."""
    messages: int = 0


def simulate(scenario: Scenario, *, keep_trace: bool = False) -> Result:
    """Run ``scenario``. Equal scenarios give equal results; what should not have happened is in ``complaints``."""
    result = Result(scenario)
    with _seeded(scenario.seed), _errors_are(result.complaints), _one_thread():
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(_World(scenario, result, keep_trace).run, clock=clock)
    return result


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let trio take runnable tasks in an order that only the seed decides (its own switch for this purpose)."""
    run: Any = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, random.Random(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = before


@contextmanager
def _one_thread() -> Iterator[None]:
    """The sampler's tensors are small: a second thread would only be waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Errors(logging.Handler):
    """Log records of level ERROR are complaints: a service logs one only for what must not happen."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        told = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            told += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._complaints.append(f"{record.name} logged: {told}")


@contextmanager
def _errors_are(complaints: list[str]) -> Iterator[None]:
    log = logging.getLogger("phloem")
    handler = _Errors(complaints)
    propagated = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = propagated
        log.removeHandler(handler)


class _World:
    def __init__(self, scenario: Scenario, result: Result, keep_trace: bool) -> None:
        self._scenario = scenario
        self._result = result
        self._keep_trace = keep_trace
        self._rng = random.Random(scenario.seed ^ 0x5EED)
        self._leader: tuple[str, int] | None = None
        self._tasks: TaskGroup
        self._trace: Trace
        self._processes: dict[str, Process] = {}

    async def run(self) -> None:
        scenario, result = self._scenario, self._result
        start = anyio.current_time()
        self._trace = trace = Trace(self._keep_trace)
        network = Network(random.Random(self._rng.getrandbits(64)))
        broker = SimBroker(network, trace, self._rng.getrandbits(32))
        self._processes = self._make_processes(broker)
        nemesis = Nemesis(broker, network, self._processes, trace, self._part(), self._start)
        gateways = [self._processes[f"gateway-{index}"] for index in range(scenario.machine.gateways)]
        clients = [Client(call, gateways, trace, self._complain, start) for call in scenario.calls]
        result.outcomes = {client.call.number: client.outcome for client in clients}
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(network.run)
            for process in self._processes.values():
                self._start(process)
            self._tasks.start_soon(self._watch)
            async with anyio.create_task_group() as calls:
                for client in clients:
                    calls.start_soon(client.run)
                async with anyio.create_task_group() as faults:
                    for fault in scenario.faults:
                        faults.start_soon(nemesis.run, fault, start)
                    faults.start_soon(anyio.sleep, WARM_UP_S + FAULTS_S if scenario.faults else 0)
                network.heal()
                trace.note("nemesis", "everything is whole again")
                calls.cancel_scope.deadline = anyio.current_time() + LIVENESS_S
            for client in clients:
                if not client.outcome.answers and not client.outcome.left:
                    self._complain(f"call {client.call.number} has no answer")
            if scenario.faults:
                await self._settle()
            self._tasks.cancel_scope.cancel()
        result.seen.update({f"fault {kind}": count for kind, count in nemesis.happened.items()})
        result.seen["message lost"] += network.lost
        result.seen["message doubled"] += network.duplicated
        result.digest, result.entries = trace.digest, list(trace.entries)
        result.seconds, result.messages = anyio.current_time() - start, trace.messages

    def _make_processes(self, broker: SimBroker) -> dict[str, Process]:
        machine, seen = self._scenario.machine, self._result.seen
        made: dict[str, Process] = {}
        for role in ROLES:
            for index in range(machine.count(role)):
                name = f"{role}-{index}"
                work_s = machine.step_s if role == "worker" else WORK_S
                made[name] = Process(
                    name, maker(role, machine, seen), broker, self._trace, self._part(), work_s, machine.new_names,
                    self._complain,
                )  # fmt: skip
        return made

    def _part(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _start(self, process: Process) -> None:
        self._tasks.start_soon(process.run)

    def _complain(self, text: str) -> None:
        self._trace.note("check", text)
        self._result.complaints.append(text)

    # --- Invariants ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at what must hold at any time."""
        while True:
            await anyio.sleep(LOOK_S)
            for process, core in self._cores():
                try:
                    core.check()
                except AssertionError as error:
                    self._complain(f"{process.name}: an invariant does not hold: {error!r}")
                    self._tasks.cancel_scope.cancel()
                    return
                self._note(process, core)

    def _note(self, process: Process, core: Core) -> None:
        counters, seen = core.counters, self._result.seen
        seen["retraction"] = max(seen["retraction"], counters.retractions)
        seen["adoption"] = max(seen["adoption"], counters.adopted)
        if core.workers and process.context is not None:
            leader = (process.name, process.context.incarnation)
            if self._leader not in (None, leader):
                seen["take-over"] += 1
                self._trace.note("check", f"{leader} leads after {self._leader}")
            self._leader = leader

    def _cores(self) -> list[tuple[Process, Core]]:
        """The cores of schedulers that run."""
        found = []
        for name, process in self._processes.items():
            if name.startswith("scheduler") and process.running and process.service._desk is not None:
                found.append((process, process.service.core))
        return found

    async def _settle(self) -> None:
        """In the end everybody runs, and nothing is held by anybody."""
        until = anyio.current_time() + SETTLE_S
        while True:
            rest = self._rest()
            if not rest:
                return
            if anyio.current_time() >= until:
                break
            await anyio.sleep(LOOK_S)
        for what in rest:
            self._complain(what)

    def _rest(self) -> list[str]:
        rest = [f"{name} does not run" for name, process in self._processes.items() if not process.running]
        for name, process in self._processes.items():
            if process.running:
                rest += [
                    f"{name} still holds {count} {what}" for what, count in self._held(name, process).items() if count
                ]
        return rest

    @staticmethod
    def _held(name: str, process: Process) -> dict[str, float]:
        assert process.context is not None
        samples = {
            sample.name: sample.value
            for metric in process.context.registry.collect()
            for sample in metric.samples
            if sample.name.removesuffix("_live") in HELD or sample.name in HELD
        }
        return samples


HELD = (
    "phloem_gateway_requests", "phloem_gateway_requests_live", "phloem_tokenizer_streams", "phloem_worker_slots", "phloem_worker_matchers",
    "phloem_scheduler_locks", "phloem_scheduler_requests_running", "phloem_scheduler_requests_waiting", "phloem_scheduler_pages_used",
)  # fmt: skip


def compare(calm: Result, result: Result) -> list[str]:
    """How the answers of a run differ from those of the same calls undisturbed."""
    differences = []
    for call in result.scenario.calls:
        outcome, wanted = result.outcomes[call.number], calm.outcomes[call.number]
        if outcome.left or not outcome.answers:
            continue
        if outcome.answers != wanted.answers:
            differences.append(f"call {call.number} got {outcome.answers}, undisturbed {wanted.answers}")
        for answer in outcome.answers.values():
            if call.schema is not None and json.loads(answer.finish)["type"] == "stop" and not _parses(answer.text):
                differences.append(f"call {call.number} is no JSON: {answer.text!r}")
    return differences


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
