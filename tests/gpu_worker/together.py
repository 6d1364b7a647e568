"""A worker on a local bus, and a scheduler of a few lines at the other end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from phloem_bus.link import Link, Links
from phloem_bus.local import MAX_PAYLOAD, LocalBroker
from phloem_bus.presence import Peer, Presence
from phloem_bus.process import Threads
from phloem_bus.service import ServiceContext
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.core import WorkerCore
from phloem_gpu_worker.device import Device, OffloadDevice, ThreadDevice
from phloem_gpu_worker.runner import Runner
from phloem_gpu_worker.service import WorkerService
from phloem_gpu_worker.stand_in import StandInRunner
from phloem_proto.codec import pack_ids
from phloem_proto.messages import (
    Grammar,
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


SHAPE: dict[str, int] = {"pages": 64, "context_length": 256, "vocab_size": 1000}
"""Of the stand-in that the worker runs unless the test brings another."""


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

    def __init__(self, device: MakeDevice, runner: Runner | None, max_payload: int) -> None:
        self.broker = LocalBroker(max_payload=max_payload)
        self.device = device
        self.runner = runner or StandInRunner(0.0, **SHAPE)
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
        service = WorkerService(WorkerConfig(**config), runner=self.runner, make_device=self.device)
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
async def together(
    device: str | MakeDevice, *, runner: Runner | None = None, max_payload: int = MAX_PAYLOAD, **config: Any
) -> AsyncIterator[Together]:
    world = Together(DEVICES[device] if isinstance(device, str) else device, runner, max_payload)
    with anyio.fail_after(20):
        async with world.tasks:
            world.tasks.start_soon(lambda: world.worker(**config))
            yield world
            world.tasks.cancel_scope.cancel()


def opened(slot: int, ids: list[int], *, rid: bytes = b"", grammar: Grammar | None = None, **params: Any) -> SlotOpen:
    """A sequence in a page of its own; a longer one has as many pages more, from page 32 on."""
    pages = [slot, *range(32, 32 + (len(ids) - 1) // 16)]
    sampling = SamplingParams(**{"max_tokens": 100, "temperature": 0.0, **params})
    return SlotOpen(slot, 1, 0, pack_ids(ids), len(ids), 0, pack_ids(pages), sampling, 1, grammar, rid)
