"""The service on a bus, under both event loops, between a gateway and a scheduler that the test plays."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import anyio
import pytest
from anyio.abc import TaskGroup

from phloem_bus.errors import ConfigError
from phloem_bus.link import Link, Links
from phloem_bus.local import LocalBroker
from phloem_bus.node import Node, Received
from phloem_bus.presence import Peer, Presence
from phloem_bus.process import Threads
from phloem_bus.service import ServiceContext
from phloem_model import ModelFiles
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import (
    Cancel,
    ChatMessage,
    Detokenize,
    Detokenized,
    Encode,
    Encoded,
    End,
    GatewayInbox,
    Held,
    Lost,
    OpenReply,
    OpenStream,
    Output,
    Profile,
    SchedulerInbox,
    StopAt,
    Text,
    TextFrame,
    TokenFrame,
    TokenLogprob,
    TopLogprob,
)
from phloem_proto.subjects import Role
from phloem_tokenizer.config import TokenizerConfig
from phloem_tokenizer.service import TokenizerService

pytestmark = [pytest.mark.anyio]
RID = b"r" * 16
M = TypeVar("M")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def until(condition: Callable[[], M | None]) -> M:
    """The condition's value once it has one; fails after a few seconds."""
    with anyio.fail_after(10):
        while not (value := condition()):  # noqa: ASYNC110 - what is looked at tells nobody
            await anyio.sleep(0.005)
    return value


class Player:
    """A gateway or scheduler, as far as the tokenizer sees of it."""

    def __init__(self, world: World, role: Role, instance: str) -> None:
        self.node = Node(
            world.broker.connect(),
            role=role,
            instance=instance,
            incarnation=random.Random(instance).getrandbits(60),
            namespace="test",
            model="tiny",
            rng=random.Random(1),
        )
        self.presence = Presence(
            self.node, tells=[Role.TOKENIZER], watches=[Role.TOKENIZER], profile=lambda: Profile("tiny")
        )
        self.links = Links(self.node, self.presence)
        self.frames: list[TextFrame] = []
        self.messages: list[int] = []  # frames of each Text
        self.stops: list[StopAt] = []
        self.lost: list[Lost] = []
        self.gone: list[str] = []
        self.node.on(Lost, lambda received: self.lost.append(received.message))

    def start(self, tasks: TaskGroup, inbox: Any) -> None:
        for run in (self.presence.run, self.links.run):
            tasks.start_soon(run)
        tasks.start_soon(self.node.run, inbox)
        self.presence.set_state("ready")

    def accept_text(self) -> None:
        async def admit(_: Received[Any]) -> None:
            return None

        def take(_: Link, message: Text) -> None:
            self.frames.extend(message.frames)
            self.messages.append(len(message.frames))

        self.links.accept(
            Role.TOKENIZER,
            receives=Text,
            profile=lambda: Profile("tiny"),
            admit=admit,
            on_open=lambda link: None,
            on_message=take,
            on_gone=lambda link: self.gone.append(link.peer_instance),
        )

    async def tokenizer(self) -> Peer:
        return await until(lambda: self.presence.choose(Role.TOKENIZER))

    async def connect(self, peer: Peer) -> Link:
        return await self.links.connect(
            peer,
            receives=StopAt,
            on_message=lambda _, stop: self.stops.append(stop),
            on_gone=lambda link: None,
            profile=Profile("tiny"),
            term=1,
        )

    async def call(self, message: Any, reply: type[M]) -> M:
        return await self.node.call(Role.TOKENIZER, "t1", message, reply, timeout=5)  # type: ignore[type-var]


class World:
    """One broker, one tokenizer service, one gateway, one scheduler."""

    def __init__(self, tasks: TaskGroup, max_payload: int) -> None:
        self.broker = LocalBroker(max_payload=max_payload)
        self.tasks = tasks
        self.drain = anyio.Event()
        self.ready: list[bool] = []
        self.ended = False
        self.gateway = self.new_gateway("g1")
        self.scheduler = Player(self, Role.SCHEDULER, "s1")
        self.scheduler.start(tasks, SchedulerInbox)
        self.context: ServiceContext

    def new_gateway(self, instance: str) -> Player:
        gateway = Player(self, Role.GATEWAY, instance)
        gateway.accept_text()
        gateway.start(self.tasks, GatewayInbox)
        return gateway

    async def serve(self, config: TokenizerConfig, drain_s: float) -> None:
        self.context = ServiceContext(
            bus=self.broker.connect(),
            role=Role.TOKENIZER,
            instance="t1",
            incarnation=7,
            namespace="test",
            model="tiny",
            rng=random.Random(2),
            offload=Threads(2),
            drain=self.drain,
            drain_s=drain_s,
            ready=self.ready.append,
        )
        await TokenizerService(config, clock=lambda: datetime(2026, 1, 1)).run(self.context)
        self.ended = True

    def streams(self) -> float | None:
        return self.context.registry.get_sample_value("phloem_tokenizer_streams")

    async def open(self, **fields: Any) -> OpenReply:
        return await self.gateway.call(OpenStream(RID, fields.pop("attempt", 1), "g1", **fields), OpenReply)


@asynccontextmanager
async def world(
    tiny: ModelFiles, *, drain_s: float = 25.0, max_payload: int = 1 << 20, **settings: Any
) -> AsyncIterator[World]:
    config = TokenizerConfig(model=str(tiny.weights), **settings)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            there = World(tasks, max_payload)
            tasks.start_soon(there.serve, config, drain_s)
            await there.gateway.tokenizer()
            yield there
            tasks.cancel_scope.cancel()


def output(data: bytes, offset: int = 0, end: End | None = None, attempt: int = 1, child: int = 0) -> Output:
    return Output((TokenFrame(RID, attempt, child, offset, pack_ids(list(data)), end),))


async def test_it_tells_what_it_is_and_answers_calls(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        peer = await there.scheduler.tokenizer()
        assert (peer.state, peer.profile.vocab_size, peer.profile.tokenizer_digest) == (
            "ready",
            260,
            tiny.tokenizer_digest,
        )
        assert there.ready == [True]
        call = there.gateway.call
        encoded = await call(Encode(messages=(ChatMessage("user", "hi"),), deadline_ms=5000), Encoded)
        assert unpack_ids(encoded.ids[0]).tolist() == [257, *b"user\nhi", 258, *b"\n", 257, *b"assistant\n"]
        assert (await call(Detokenize(encoded.ids), Detokenized)).texts == ("user\nhi\nassistant\n",)
        bad = await call(Encode(), Encoded)
        assert bad.error is not None
        assert bad.error.code == "invalid_request"


async def test_tokens_become_text_and_a_stop_goes_back(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        assert (await there.open(stop=("END",), n=2)).error is None
        link = await there.scheduler.connect(await there.scheduler.tokenizer())
        link.send(output(b"one E"))
        link.send(Output(output(b"ND two", 5).frames + output(b"x", child=1, end=End("length")).frames))
        frames = await until(lambda: there.gateway.frames if len(there.gateway.frames) == 3 else None)
        assert [frame.text for frame in frames] == ["one ", "", "x"]
        assert (frames[1].end, frames[2].end) == (End("stop", "END"), End("length"))
        assert there.gateway.messages == [1, 2]  # one message per step and gateway
        assert await until(lambda: there.scheduler.stops) == [StopAt(RID, 1, 0, 7)]
        assert there.streams() == 1
        to_tokenizer = there.gateway.links.get(Role.TOKENIZER, "t1")
        assert to_tokenizer is not None
        to_tokenizer.send(Cancel(RID, 1))
        await until(lambda: there.streams() == 0)
        again = await there.open()
        assert again.error is not None
        assert again.error.code == "stale"


async def test_an_open_that_comes_before_the_link_waits_for_it(tiny: ModelFiles) -> None:
    """A gateway whose beat the tokenizer has not heard yet."""
    async with world(tiny) as there:
        late = Player(there, Role.GATEWAY, "g2")
        late.accept_text()
        there.tasks.start_soon(late.links.run)
        there.tasks.start_soon(late.node.run, GatewayInbox)
        replies: list[OpenReply] = []

        async def open_it() -> None:
            replies.append(await there.gateway.call(OpenStream(RID, 1, "g2"), OpenReply))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_it)
            await anyio.lowlevel.checkpoint()
            late.presence.set_state("ready")
            there.tasks.start_soon(late.presence.run)
        assert replies[0].error is None


async def test_an_open_for_an_unknown_gateway_is_refused(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        reply = await there.gateway.call(OpenStream(RID, 1, "nobody"), OpenReply)
        assert reply.error is not None
        assert reply.error.code == "unavailable"
        assert there.streams() == 0


async def test_a_missing_frame_loses_the_request_and_a_new_attempt_goes_on(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        await there.open()
        link = await there.scheduler.connect(await there.scheduler.tokenizer())
        link.send(output(b"ab"))
        link.send(output(b"z", 9))
        lost = await until(lambda: there.gateway.lost)
        assert lost[0].rids == (RID,)
        held = there.gateway.frames[0].ids
        assert (await there.open(attempt=2, have=(Held(held),))).error is None
        link.send(output(b"cd", 2, End("length"), attempt=2))
        frames = await until(lambda: there.gateway.frames[1:])
        assert (frames[0].text, frames[0].offset) == ("cd", 2)


async def test_a_gateway_that_leaves_frees_its_streams(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        await there.open()
        assert there.streams() == 1
        await there.gateway.presence.goodbye()
        await until(lambda: there.streams() == 0)


async def test_a_link_that_ends_is_opened_again_and_its_streams_are_forgotten(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        await there.open()
        first = there.gateway.links.get(Role.TOKENIZER, "t1")
        assert first is not None
        first.close()
        await until(lambda: there.streams() == 0)
        second = await until(lambda: there.gateway.links.get(Role.TOKENIZER, "t1"))
        assert second.session != first.session
        assert (await there.open(attempt=2)).error is None


async def test_streams_and_calls_beyond_the_bounds_are_told_busy(tiny: ModelFiles) -> None:
    async with world(tiny, max_streams=1) as there:
        assert (await there.open()).error is None
        other = await there.gateway.call(OpenStream(b"o" * 16, 1, "g1"), OpenReply)
        assert other.error is not None
        assert other.error.code == "busy"
        assert other.error.retry_after_ms > 0


async def test_a_result_that_no_message_can_hold_is_an_error(tiny: ModelFiles) -> None:
    async with world(tiny, max_payload=16_384) as there:
        reply = await there.gateway.call(Encode(("x" * 8000,)), Encoded)
        assert reply.error is not None
        assert reply.error.code == "too_large"


async def test_frames_too_large_for_one_message_go_in_several(tiny: ModelFiles) -> None:
    async with world(tiny, max_payload=16_384) as there:
        await there.open(n=4, logprobs=True)
        link = await there.scheduler.connect(await there.scheduler.tokenizer())
        entry = TokenLogprob(258, -1.0, tuple(TopLogprob(258, -2.0) for _ in range(100)))
        frames = [TokenFrame(RID, 1, child, 0, pack_ids([65]), None, (entry,) * 2) for child in range(4)]
        link.send(Output(tuple(frames)))
        whole = await until(lambda: there.gateway.frames if len(there.gateway.frames) == 4 else None)
        assert [frame.child for frame in whole] == [0, 1, 2, 3]
        assert all(frame.end is None and frame.logprobs[0].top[0].piece == b"<|im_end|>" for frame in whole)
        assert len(there.gateway.messages) > 1
        link.send(Output((TokenFrame(RID, 1, 0, 1, pack_ids([65]), None, (entry,) * 8),)))
        last = await until(lambda: there.gateway.frames[4:])
        assert last[0].end is not None
        assert (last[0].end.reason, last[0].end.code, last[0].logprobs) == ("error", "too_large", ())


async def test_drain_lets_live_requests_finish(tiny: ModelFiles) -> None:
    async with world(tiny) as there:
        await there.open()
        link = await there.scheduler.connect(await there.scheduler.tokenizer())
        there.drain.set()
        await until(lambda: there.ready == [True, False])
        refused = await there.gateway.call(OpenStream(b"o" * 16, 1, "g1"), OpenReply)
        assert refused.error is not None
        assert refused.error.code == "draining"
        link.send(output(b"done", 0, End("length")))
        await until(lambda: there.gateway.frames)
        await there.gateway.node.send(Role.TOKENIZER, "t1", Cancel(RID, 1))
        await until(lambda: there.ended)
        assert there.gateway.lost == []
        await until(lambda: not there.gateway.presence.peers(Role.TOKENIZER))


async def test_drain_hands_back_what_does_not_finish(tiny: ModelFiles) -> None:
    async with world(tiny, drain_s=2.1) as there:
        await there.open()
        there.drain.set()
        lost = await until(lambda: there.gateway.lost)
        assert lost[0].rids == (RID,)
        await until(lambda: there.ended)


async def test_a_model_that_cannot_be_had_names_the_flag(tmp_path_factory: pytest.TempPathFactory) -> None:
    service = TokenizerService(TokenizerConfig(model=str(tmp_path_factory.mktemp("empty"))))
    context = ServiceContext(
        LocalBroker().connect(), Role.TOKENIZER, "t1", 1, "test", "x", random.Random(1), Threads(1), anyio.Event()
    )
    with pytest.raises(ConfigError, match=r"--model: .*config\.json: is missing"):
        await service.run(context)
