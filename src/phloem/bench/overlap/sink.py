"""Plays a gateway (opens requests) and a detokeniser (takes the output) in one process, and watches results pass on the bus."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec

from phloem_bus.bus import Bus, Subscription
from phloem_bus.link import Link, Links
from phloem_bus.node import Node, Received
from phloem_bus.presence import Presence
from phloem_proto import subjects
from phloem_proto.codec import Codec, pack_ids
from phloem_proto.messages import (
    Cancel,
    ErrorInfo,
    GatewayInbox,
    Hello,
    LinkFrame,
    Live,
    LiveReply,
    Open,
    OpenReply,
    Output,
    Profile,
    Result,
    SamplingParams,
    TokenizerInbox,
    WorkerLinkUp,
)
from phloem_proto.subjects import Role

from .figures import Step

OPEN_S = 30.0
"""Longest wait for a scheduler that has a worker, and for it to accept a request."""
TAP_CAPACITY = 65536
"""Results and keep-alives that may wait to be looked at: over a minute of them."""


class RequestsFailed(RuntimeError):
    """Raised when the scheduler refuses a request, or one ends other than by its length."""


@dataclass(slots=True)
class Sink:
    """What has come in. Made by `open_sink`."""

    gateway: Node
    detokeniser: Node
    scheduler: str = ""
    frames: int = 0
    tokens: int = 0
    steps: list[Step] = field(default_factory=list)
    finished: anyio.Event = field(default_factory=anyio.Event)
    _open: dict[bytes, None] = field(default_factory=dict)
    _failure: str = ""

    async def run_requests(
        self, rows: int, prompt_tokens: int, output_tokens: int, seed: int, timeout_s: float
    ) -> None:
        """Open ``rows`` requests with prompts of their own and take their output until all have ended.

        Raises:
            RequestsFailed: one was refused, or ended otherwise than by its length.
            TimeoutError: they did not end in time.
            BusError: the scheduler does not answer.
        """
        rng = random.Random(seed)
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        rids = [rng.randbytes(16) for _ in range(rows)]
        self._open = dict.fromkeys(rids)
        with anyio.fail_after(timeout_s):
            async with anyio.create_task_group() as tasks:
                await self.gateway.call(Role.SCHEDULER, self.scheduler, Live(()), LiveReply, timeout=OPEN_S)
                for rid in rids:
                    ids = pack_ids(rng.randrange(1000, 20000) for _ in range(prompt_tokens))
                    tasks.start_soon(self._open_one, rid, ids, params, rng.getrandbits(32))
            await self.finished.wait()
        for rid in rids:
            await self.gateway.send(Role.SCHEDULER, self.scheduler, Cancel(rid, 1))
        if self._failure:
            raise RequestsFailed(self._failure)

    async def _open_one(self, rid: bytes, ids: bytes, params: SamplingParams, seed: int) -> None:
        message = Open(rid, 1, self.gateway.instance, self.detokeniser.instance, ids, params, seed)
        reply = await self.gateway.call(Role.SCHEDULER, self.scheduler, message, OpenReply, timeout=OPEN_S)
        if reply.error is not None:
            self._fail(f"the scheduler refuses: {reply.error.code}: {reply.error.message}")

    def take_output(self, _: Link, message: Output) -> None:
        """Count what the scheduler sends; the last end finishes the run."""
        for frame in message.frames:
            self.frames += 1
            self.tokens += len(frame.ids) // 4
            if frame.end is not None:
                self._open.pop(frame.rid, None)
                if frame.end.reason != "length":
                    self._fail(f"a request ended by {frame.end.reason} {frame.end.code} {frame.end.message}")
        if not self._open:
            self.finished.set()

    def lost(self, _: Link) -> None:
        """The scheduler's link ended."""
        self._fail("the scheduler is gone")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self.finished.set()

    async def watch_results(self, results: Subscription) -> None:
        """Note each result that passes from worker to scheduler."""
        frames: Codec[LinkFrame] = Codec(LinkFrame)
        bodies: Codec[Result] = Codec(WorkerLinkUp)
        async for raw in results:
            arrived = anyio.current_time()
            try:
                frame = frames.decode(raw.data).message
                result = bodies.decode_body(frame.body) if frame.seq else None
            except msgspec.DecodeError:
                continue  # a beat, a hello's reply: not a frame
            if isinstance(result, Result):
                yields = result.yields
                step = Step(result.step, arrived, len(yields), sum(yields), result.forward_ms, result.idle_ms)
                self.steps.append(step)


@asynccontextmanager
async def open_sink(bus: Bus, tap: Bus, *, namespace: str, model: str, seed: int) -> AsyncIterator[Sink]:
    """A sink that a scheduler with a worker has linked.

    Args:
        bus: connection of the gateway and the detokeniser.
        tap: another connection, over which results are watched, so that watching does not delay the output.

    Raises:
        TimeoutError: no scheduler with a worker linked it within `OPEN_S`.
    """
    gateway, detokeniser = (_node(bus, role, namespace, model, seed) for role in (Role.GATEWAY, Role.TOKENIZER))
    sink = Sink(gateway, detokeniser)
    profile = Profile(model)
    presences = [
        Presence(gateway, tells=[Role.SCHEDULER, Role.TOKENIZER], watches=[Role.SCHEDULER], profile=lambda: profile),
        Presence(detokeniser, tells=[Role.SCHEDULER, Role.GATEWAY], watches=[Role.SCHEDULER], profile=lambda: profile),
    ]
    links = Links(detokeniser, presences[1])
    linked = anyio.Event()

    async def admit(_: Received[Hello]) -> ErrorInfo | None:
        return None

    def opened(_: Link) -> None:
        linked.set()

    links.accept(
        Role.SCHEDULER,
        receives=Output,
        profile=lambda: profile,
        admit=admit,
        on_open=opened,
        on_message=sink.take_output,
        on_gone=sink.lost,
    )
    results = await tap.subscribe(
        subjects.subject(namespace, gateway.model, Role.SCHEDULER, "*", Role.WORKER), capacity=TAP_CAPACITY
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink.watch_results, results)
        await tasks.start(gateway.run, GatewayInbox)
        await tasks.start(detokeniser.run, TokenizerInbox)
        for presence in presences:
            tasks.start_soon(presence.run)
            presence.set_state("ready")
        tasks.start_soon(links.run)
        with anyio.fail_after(OPEN_S):
            await linked.wait()
            sink.scheduler = await _with_worker(presences[0])
        try:
            yield sink
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for presence in presences:
                    await presence.goodbye()


async def _with_worker(presence: Presence) -> str:
    """The scheduler's instance, once it says that it has a worker."""
    while True:
        for peer in presence.peers(Role.SCHEDULER):
            if peer.load.workers:
                return peer.instance
        await anyio.sleep(0.05)


def _node(bus: Bus, role: Role, namespace: str, model: str, seed: int) -> Node:
    rng = random.Random(f"{seed}/{role}")
    incarnation = rng.getrandbits(63)
    return Node(
        bus,
        role=role,
        instance=f"sink-{role}",
        incarnation=incarnation,
        namespace=namespace,
        model=subjects.slug(model),
        rng=rng,
    )
