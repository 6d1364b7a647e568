"""The worker on a local bus, with a scheduler of a few lines at the other end."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from phloem_bus.errors import ConfigError, HelloRefused
from phloem_bus.link import Link, Links
from phloem_bus.local import LocalBroker
from phloem_bus.presence import Peer, Presence
from phloem_bus.process import Threads
from phloem_bus.service import ServiceContext
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.core import WorkerCore
from phloem_gpu_worker.device import Device, OffloadDevice, ThreadDevice
from phloem_gpu_worker.service import WorkerService
from phloem_gpu_worker.stand_in import StandInRunner, next_token
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import (
    Plan,
    Profile,
    Result,
    SamplingParams,
    SchedulerInbox,
    SlotOpen,
    StepFailed,
    WorkerLinkUp,
)
from phloem_proto.subjects import Role

MakeDevice = Callable[[WorkerCore, ServiceContext], Device]
DEVICES: dict[str, MakeDevice] = {
    "thread": lambda core, _: ThreadDevice(core),
    "offload": lambda core, ctx: OffloadDevice(core, ctx.offload),
}


class Scheduler:
    """The other end: says Hello, sends plans, collects what comes back."""

    def __init__(self, ctx: ServiceContext, term: int = 1) -> None:
        self.node = ctx.node()
        self.profile = Profile(ctx.model)
        self.presence = Presence(
            self.node, tells=[Role.WORKER], watches=[Role.WORKER], profile=lambda: self.profile, term=lambda: self.term
        )
        self.links = Links(self.node, self.presence)
        self.term = term
        self.peers: list[Peer] = []
        self.left = anyio.Event()
        self.lost = anyio.Event()
        self.came = anyio.Event()
        self.reports: list[Result | StepFailed] = []
        self.got = anyio.Event()
        self.presence.on_join(Role.WORKER, self._joined)
        self.presence.on_gone(Role.WORKER, lambda _: self.left.set())

    def _joined(self, peer: Peer) -> None:
        self.peers.append(peer)
        self.came.set()

    def _take(self, _: Link, report: Result | StepFailed) -> None:
        self.reports.append(report)
        self.got.set()
        self.got = anyio.Event()

    async def hello(self) -> Link:
        await self.came.wait()
        return await self.links.connect(
            self.peers[-1], receives=WorkerLinkUp, on_message=self._take, on_gone=lambda _: self.lost.set(), profile=self.profile,
            term=self.term,
        )  # fmt: skip

    async def reports_of(self, count: int) -> list[Any]:
        while len(self.reports) < count:
            await self.got.wait()
        return self.reports[:count]


class Together:
    """A worker and any number of schedulers on one broker."""

    def __init__(self, device: str) -> None:
        self.broker = LocalBroker()
        self.device = DEVICES[device]
        self.drain = anyio.Event()
        self.tasks = anyio.create_task_group()
        self.ended = anyio.Event()

    def context(self, role: Role, instance: str) -> ServiceContext:
        drain = self.drain if role is Role.WORKER else anyio.Event()
        incarnation = random.Random(instance).getrandbits(63)
        return ServiceContext(
            self.broker.connect(instance), role, instance, incarnation, "test", "m", random.Random(1), Threads(), drain
        )

    async def worker(self, **config: Any) -> None:
        runner = StandInRunner(0.0, pages=64, context_length=256, vocab_size=1000)
        service = WorkerService(WorkerConfig(**config), runner=runner, make_device=self.device)
        await service.run(self.context(Role.WORKER, "w"))
        self.ended.set()

    async def scheduler(self, instance: str = "s", term: int = 1) -> Scheduler:
        scheduler = Scheduler(self.context(Role.SCHEDULER, instance), term)
        await self.tasks.start(scheduler.node.run, SchedulerInbox)
        self.tasks.start_soon(scheduler.presence.run)
        self.tasks.start_soon(scheduler.links.run)
        scheduler.presence.set_state("ready")
        return scheduler


@asynccontextmanager
async def together(device: str, **config: Any) -> AsyncIterator[Together]:
    world = Together(device)
    with anyio.fail_after(20):
        async with world.tasks:
            world.tasks.start_soon(lambda: world.worker(**config))
            yield world
            world.tasks.cancel_scope.cancel()


def opened(slot: int, ids: list[int]) -> SlotOpen:
    params = SamplingParams(100, temperature=0.0)
    return SlotOpen(slot, 1, 0, pack_ids(ids), len(ids), 0, pack_ids([slot]), params, 1)


def hashes(ids: list[int], tokens: int) -> list[int]:
    ids = list(ids)
    for _ in range(tokens):
        ids.append(int(next_token(np.array(ids[-1:]), np.array([len(ids) - 1]), 1000)[0]))
    return ids[-tokens:]


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("device", DEVICES)
def test_plans_sent_ahead_come_back_in_order(backend: str, device: str) -> None:
    async def main() -> None:
        async with together(device) as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            worker = link.peer_profile.worker
            assert worker is not None
            assert (worker.page_size, worker.pages, worker.slots, worker.vocab_size) == (16, 64, 64, 1000)
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            for step in range(2, 10):
                link.send(Plan(step, pack_ids([3]), pack_ids([0])))
            results = await scheduler.reports_of(9)
            assert [result.step for result in results] == list(range(1, 10))
            assert [unpack_ids(result.ids)[0] for result in results] == hashes([1, 2, 3, 4], 9)
            assert all(result.forward_ms > 0 for result in results)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_step_voids_the_rest_and_a_new_session_starts_empty(backend: str, device: str) -> None:
    async def main() -> None:
        async with together(device) as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            link.send(Plan(2, pack_ids([5]), pack_ids([0])))
            link.send(Plan(3, pack_ids([3]), pack_ids([0])))
            first, second = await scheduler.reports_of(2)
            assert isinstance(first, Result)
            assert (second.step, "not live" in second.message) == (2, True)
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([2]), opens=(opened(3, [7, 8]),)))
            third = (await scheduler.reports_of(3))[2]
            assert list(unpack_ids(third.ids)) == hashes([7, 8], 1)

    anyio.run(main, backend=backend)


def test_only_one_scheduler_leads() -> None:
    async def main() -> None:
        async with together("thread") as world:
            leader = await world.scheduler("a", term=5)
            link = await leader.hello()
            rival = await world.scheduler("b", term=6)
            with pytest.raises(HelloRefused, match="fenced"):
                await rival.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            await leader.reports_of(1)
            await leader.presence.goodbye()
            await leader.lost.wait()
            link = await rival.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([1]), opens=(opened(3, [9]),)))
            assert isinstance((await rival.reports_of(1))[0], Result)
            late = await world.scheduler("c", term=4)
            with pytest.raises(HelloRefused, match="term 4 is over"):
                await late.hello()

    anyio.run(main)


def test_a_peer_that_ignores_results_is_cut_off() -> None:
    async def main() -> None:
        async with together("offload") as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            for step in range(2, 200):
                link.send(Plan(step, pack_ids([3]), pack_ids([0])))
            await scheduler.lost.wait()
            assert not link.open

    anyio.run(main)


def test_drain_waits_for_live_sequences_then_says_goodbye() -> None:
    async def main() -> None:
        async with together("thread") as world:
            scheduler = await world.scheduler()
            link = await scheduler.hello()
            link.send(Plan(1, pack_ids([3]), pack_ids([4]), opens=(opened(3, [1, 2, 3, 4]),)))
            await scheduler.reports_of(1)
            world.drain.set()
            with anyio.move_on_after(1.5):
                await world.ended.wait()
            assert not world.ended.is_set()
            link.send(Plan(2, pack_ids([3]), pack_ids([0])))
            await scheduler.reports_of(2)
            link.send(Plan(3, b"", b"", closes=pack_ids([3])))
            await world.ended.wait()
            await scheduler.left.wait()

    anyio.run(main)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("--dtype", {"dtype": "int8"}),
        ("--device", {"device": "tpu"}),
        ("--page-size", {"page_size": 24}),
        ("--kv-tokens", {"kv_tokens": 20}),
        ("--kv-memory-gb", {"kv_memory_gb": 0.0}),
        ("--max-rows", {"max_rows": 0}),
        ("--max-step-tokens", {"max_step_tokens": 64}),
        ("--max-context", {"max_context": 3}),
        ("--threads", {"threads": -1}),
        ("--model", {"model": " "}),
        ("--model", {"model": "stand-in:fast"}),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(**values)
    assert caught.value.setting == setting


def test_the_worker_needs_no_transformers(tmp_path: object) -> None:
    """Imports, loads the tiny model and builds a matcher in an interpreter where ``transformers`` can't be imported."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import phloem_gpu_worker.__main__\n"
        "from phloem_gpu_worker.config import WorkerConfig\n"
        "from phloem_gpu_worker.startup import load\n"
        "from llguidance import LLMatcher\n"
        "from phloem_proto.messages import Grammar\n"
        "core = load(WorkerConfig('tiny', kv_tokens=1024, dtype='float32'), 'tiny').core\n"
        "core.desk._build(Grammar('d', 'llguidance', 'regex', LLMatcher.grammar_from_regex('a')))\n"
        "print(core.runner.capacity.pages)\n"
    )
    environment = {"PHLOEM_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.stdout.strip() == "64", done.stderr
