"""A scheduler service on a local bus with small neighbours: workers without a model, a detokeniser and a gateway that note what they get."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from phloem_bus.link import Link, Links
from phloem_bus.local import LocalBroker
from phloem_bus.node import Node, Received
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import (
    Compile,
    End,
    ErrorInfo,
    GatewayInbox,
    GrammarInbox,
    Hello,
    Live,
    LiveReply,
    Lost,
    Open,
    OpenReply,
    Output,
    Plan,
    Profile,
    SamplingParams,
    StepFailed,
    TokenizerInbox,
    Verdict,
    WorkerInbox,
)
from phloem_proto.subjects import Role
from phloem_scheduler.config import SchedulerConfig
from phloem_scheduler.service import SchedulerService

from .fake_worker import FakeWorker, profile

T = TypeVar("T")

STEP_S = 0.001
"""A worker's step takes time, so that a test can look at what is going on before it is over."""


async def inline(work: Callable[[], T]) -> T:
    """An Offload that needs no thread."""
    return work()


class Neighbour:
    """A node with a presence and links, started and stopped on its own."""

    role: Role
    inbox: Any

    def __init__(self, broker: LocalBroker, instance: str, incarnation: int = 1) -> None:
        self.bus = broker.connect(instance)
        rng = random.Random(incarnation)
        self.node = Node(
            self.bus,
            role=self.role,
            instance=instance,
            incarnation=incarnation,
            namespace="default",
            model="fake",
            rng=rng,
        )
        self.presence = Presence(self.node, tells=(Role.SCHEDULER,), watches=(Role.SCHEDULER,), profile=self.profile)
        self.links = Links(self.node, self.presence)
        self.scope = anyio.CancelScope()

    def profile(self) -> Profile:
        return Profile("fake")

    async def run(self) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.node.run, self.inbox)
                tasks.start_soon(self.presence.run)
                tasks.start_soon(self.links.run)
                tasks.start_soon(self.work)
                self.presence.set_state("ready")
                await anyio.sleep_forever()

    async def work(self) -> None:
        """What else it does."""

    def kill(self) -> None:
        """As a killed process: no goodbye."""
        self.scope.cancel()
        self.bus.kill()


async def admit_all(_: Received[Hello]) -> ErrorInfo | None:
    return None


class Worker(Neighbour):
    role = Role.WORKER
    inbox = WorkerInbox

    def __init__(
        self, broker: LocalBroker, instance: str, incarnation: int = 1, fail_at: int = 0, silent: bool = False
    ) -> None:
        self.silent = silent
        self.fake = FakeWorker(profile(page_size=4, pages=200), seed=incarnation)
        self.fail_at = fail_at
        self._plans: deque[tuple[Link, Plan]] = deque()
        self._void: Link | None = None  # its session has failed: what still comes over it is ignored
        super().__init__(broker, instance, incarnation)
        self.links.accept(
            Role.SCHEDULER,
            receives=Plan,
            profile=self.profile,
            admit=self._admit,
            on_open=lambda _: None,
            on_message=lambda link, plan: self._plans.append((link, plan)),
            on_gone=lambda _: None,
        )

    def profile(self) -> Profile:
        return Profile("fake", model_digest="m", tokenizer_digest="t", worker=self.fake.shape)

    async def _admit(self, _: Received[Hello]) -> ErrorInfo | None:
        if self.silent:
            await anyio.sleep_forever()
        self.fake.reset()
        return None

    async def work(self) -> None:
        """One plan after the other, each taking the time of a step."""
        while True:
            await anyio.sleep(STEP_S)
            if not self._plans:
                continue
            link, plan = self._plans.popleft()
            if not link.open or link is self._void:
                continue
            if plan.step == self.fail_at:
                self.fail_at, self._void = 0, link
                link.send(StepFailed(plan.step, "boom"))
            else:
                link.send(self.fake.run(plan))


class Detokeniser(Neighbour):
    role = Role.TOKENIZER
    inbox = TokenizerInbox

    def __init__(self, broker: LocalBroker, instance: str, heard: Callable[[Output], None], digest: str = "t") -> None:
        self.digest = digest
        super().__init__(broker, instance)
        self.links.accept(
            Role.SCHEDULER,
            receives=Output,
            profile=self.profile,
            admit=admit_all,
            on_open=lambda _: None,
            on_message=lambda _, output: heard(output),
            on_gone=lambda _: None,
        )

    def profile(self) -> Profile:
        return Profile("fake", tokenizer_digest=self.digest)


class Judge(Neighbour):
    role = Role.GRAMMAR
    inbox = GrammarInbox

    def __init__(self, broker: LocalBroker, instance: str, verdicts: list[Verdict]) -> None:
        super().__init__(broker, instance)
        self.asked: list[Compile] = []
        self.deaf_to = 0
        """So many questions get no answer."""
        self._verdicts = verdicts
        self.node.serve(Compile, self._answer, limit=10, busy=lambda _: verdicts[0])

    async def _answer(self, received: Received[Compile]) -> Verdict:
        self.asked.append(received.message)
        if len(self.asked) <= self.deaf_to:
            await anyio.sleep_forever()
        return self._verdicts.pop(0) if len(self._verdicts) > 1 else self._verdicts[0]


class Gateway(Neighbour):
    role = Role.GATEWAY
    inbox = GatewayInbox

    def __init__(self, broker: LocalBroker, instance: str) -> None:
        super().__init__(broker, instance)
        self.lost: list[bytes] = []
        self.node.on(Lost, lambda received: self.lost.extend(received.message.rids))


class Town:
    """Everybody together."""

    def __init__(self, tasks: TaskGroup, config: SchedulerConfig) -> None:
        self.tasks = tasks
        self.broker = LocalBroker()
        self.service = SchedulerService(config)
        self.drain = anyio.Event()
        self.stopped = anyio.Event()
        self.ready: list[bool] = []
        self.outputs: dict[tuple[bytes, int], list[int]] = {}
        self.ends: dict[tuple[bytes, int], End] = {}
        self.gateway = Gateway(self.broker, "g1")
        self.opened = 0

    def start(self, neighbour: Neighbour) -> None:
        self.tasks.start_soon(neighbour.run)

    async def serve(self, service: SchedulerService, instance: str, drain: anyio.Event) -> None:
        context = ServiceContext(
            bus=self.broker.connect(instance),
            role=Role.SCHEDULER,
            instance=instance,
            incarnation=7,
            namespace="default",
            model="fake",
            rng=random.Random(7),
            offload=inline,
            drain=drain,
            drain_s=5.0,
            ready=self.ready.append,
        )
        await service.run(context)
        self.stopped.set()

    def heard(self, output: Output) -> None:
        for frame in output.frames:
            have = self.outputs.setdefault((frame.rid, frame.child), [])
            assert frame.offset <= len(have)
            have[frame.offset :] = list(unpack_ids(frame.ids))
            if frame.end is not None:
                assert (frame.rid, frame.child) not in self.ends
                self.ends[frame.rid, frame.child] = frame.end

    async def open(
        self,
        prompt: list[int],
        detokeniser: str = "d1",
        attempt: int = 1,
        rid: bytes = b"",
        scheduler: str = "s1",
        **more: Any,
    ) -> OpenReply:
        """Open a request and return the reply."""
        self.opened += 1
        fields = {name: more.pop(name) for name in ("n", "have", "grammar", "seed") if name in more}
        fields.setdefault("seed", 0)
        params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **more})
        rid = rid or self.opened.to_bytes(16, "big")
        message = Open(rid, attempt, "g1", detokeniser, pack_ids(prompt), params, **fields)
        return await self.gateway.node.call(Role.SCHEDULER, scheduler, message, OpenReply, timeout=2.0)

    async def announce(self, scheduler: str = "s1") -> None:
        """The gateway says that it holds nothing: a new leader takes new requests then."""
        await self.gateway.node.call(Role.SCHEDULER, scheduler, Live(()), LiveReply, timeout=2.0)

    async def until(self, condition: Callable[[], object], within: float = 15.0) -> None:
        """Wait for something to become true."""
        with anyio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - what is waited for is spread over many places
                await anyio.sleep(0.01)


@asynccontextmanager
async def town(config: SchedulerConfig | None = None, workers: int = 1) -> AsyncIterator[Town]:
    """A scheduler that leads, with a gateway, a detokeniser and workers linked."""
    async with anyio.create_task_group() as tasks:
        place = Town(tasks, config or SchedulerConfig(chunk_tokens=64))
        place.start(place.gateway)
        place.start(Detokeniser(place.broker, "d1", place.heard))
        for number in range(workers):
            place.start(Worker(place.broker, f"w{number}"))
        tasks.start_soon(place.serve, place.service, "s1", place.drain)
        await place.until(lambda: place.gateway.presence.peers(Role.SCHEDULER))
        await place.until(lambda: len(place.service.core.workers) == workers and place.service.core.outbox.linked)
        await place.announce()
        yield place
        tasks.cancel_scope.cancel()
