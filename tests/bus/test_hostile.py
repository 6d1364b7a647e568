"""What a peer that was taken over, or that plays back what it has heard, can do to others on the bus: nothing, and it is counted."""

from __future__ import annotations

import random
import typing
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from phloem_bus import link_core, peers
from phloem_bus.bus import RawMessage
from phloem_bus.errors import HelloRefused, NoPeer
from phloem_bus.link import Link
from phloem_bus.link_core import LinkCore
from phloem_bus.local import LocalBroker, LocalBus
from phloem_bus.node import Node, Received
from phloem_bus.peers import GONE_S, PeerTable
from phloem_bus.told import MOST_COUNTERS, believable
from phloem_proto import messages, subjects
from phloem_proto.codec import Codec, Envelope, Sender, encode
from phloem_proto.messages import (
    Beat,
    Cancel,
    ErrorInfo,
    Hello,
    HelloReply,
    LinkFrame,
    Load,
    Open,
    Probe,
    ProbeReply,
    Profile,
    Result,
    SamplingParams,
    WorkerProfile,
)
from phloem_proto.senders import SENDERS, may_send
from phloem_proto.subjects import Role

from .actors import INBOXES, Actor, drive
from .test_links import Pair, plan, until, with_pair

RID = bytes(16)


class Ear:
    """A node that listens, and another connection that says to it whatever it likes."""

    def __init__(self, role: Role) -> None:
        self.broker = LocalBroker()
        self.node = Node(
            self.broker.connect(),
            role=role,
            instance="me",
            incarnation=1,
            namespace="d",
            model="m",
            rng=random.Random(0),
        )
        self.raw = self.broker.connect()

    async def say(self, sender: Sender, message: msgspec.Struct | bytes, reply: str | None = None) -> None:
        data = message if isinstance(message, bytes) else encode(sender, message)
        await self.raw.publish(f"ph.d.m.{self.node.role}.me.{sender.role}", data, reply=reply)
        await anyio.sleep(0.01)


def with_ear(role: Role, test: Callable[[Ear], Awaitable[None]]) -> None:
    async def main(_: MockClock) -> None:
        ear = Ear(role)
        async with anyio.create_task_group() as tasks:
            await tasks.start(ear.node.run, INBOXES[role])
            await test(ear)
            tasks.cancel_scope.cancel()

    drive(main)


GATEWAY = Sender("gateway", "g", 7)


@pytest.mark.parametrize("depth", [100, 2000, 1_000_000])
def test_brackets_in_brackets_are_malformed_wherever_they_are(depth: int) -> None:
    async def test(ear: Ear) -> None:
        whole = encode(GATEWAY, Cancel(RID, 1))
        for nest in (b"\x91" * depth + b"\xc0", b"\x81\xa0" * depth + b"\xc0"):
            await ear.say(GATEWAY, b"\x94" + whole[1:] + nest)  # skipped by a reader that knows three fields
            await ear.say(GATEWAY, whole.replace(b"\xc4\x10" + RID, nest))
            await ear.say(GATEWAY, nest)
        seen: list[Cancel] = []
        ear.node.on(Cancel, lambda received: seen.append(received.message))
        await ear.say(GATEWAY, whole)
        assert seen == [Cancel(RID, 1)]
        assert set(ear.node.refused) <= {"malformed", "unhandled"}
        assert ear.node.refused["malformed"] >= 4

    with_ear(Role.SCHEDULER, test)


def test_a_link_ends_with_a_body_that_is_nested_too_deeply_and_nothing_else_does() -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec(messages.Plan).decode_body(b"\x9f" + msgspec.msgpack.encode(plan(1))[1:] + b"\x91" * 100_000)


def test_every_kind_that_an_inbox_takes_has_its_senders() -> None:
    taken = {kind for inbox in INBOXES.values() for kind in typing.get_args(inbox)}
    assert set(SENDERS) == taken


@pytest.mark.parametrize("role", Role)
def test_a_kind_that_is_not_a_roles_to_say_is_refused(role: Role) -> None:
    """A grammar service knows the rids of requests: it can't cancel one, nor open one, nor empty the cache or read the tree."""
    alien = [
        Cancel(RID, 9),
        Open(RID, 1, "g", "t", bytes(4), SamplingParams(1), 1),
        messages.Flush(),
        messages.Radix(),
        messages.Live(()),
        messages.Pins("owner"),
    ]

    async def test(ear: Ear) -> None:
        seen: list[object] = []
        for message in alien:
            ear.node.on(type(message), lambda received: seen.append(received.message))
            await ear.say(Sender(role, "x", 1), message)
        if role is Role.GATEWAY:
            assert (seen, ear.node.refused) == (alien, {})
        else:
            assert (seen, ear.node.refused) == ([], {"sender": len(alien)})
        assert all(may_send(role, type(message)) is (role is Role.GATEWAY) for message in alien)

    with_ear(Role.SCHEDULER, test)


OWN_INBOX = subjects.replies(Role.GATEWAY, "g")


@pytest.mark.parametrize(
    ("reply", "answered"),
    [
        (f"{OWN_INBOX}.a1.b2", True),
        ("_INBOX.17", True),  # brokers without users
        (f"{subjects.replies(Role.WORKER, 'w')}.a1.b2", False),
        ("ph.d.m.gateway.g.tokenizer", False),  # we would say it in our own name
        (f"{OWN_INBOX}.*", False),
        (f"{OWN_INBOX}.>", False),
        (f"{OWN_INBOX}.", False),
        (OWN_INBOX.partition(".")[0], False),
        ("_INBOX", False),
        ("*", False),
        (">", False),
        ("a b", False),
        ("", False),
    ],
)
def test_an_answer_is_given_only_where_the_caller_waits_for_one(reply: str, answered: bool) -> None:
    async def test(ear: Ear) -> None:
        async def serve(_: Received[Probe]) -> ProbeReply:
            return ProbeReply()

        ear.node.serve(Probe, serve, limit=1, busy=lambda _: ProbeReply())
        everything = await ear.broker.connect().subscribe(">")
        raw: Any = ear.broker
        subject = "ph.d.m.tokenizer.me.gateway"
        raw.deliver(
            ear.raw, RawMessage(subject, encode(GATEWAY, Probe()), reply)
        )  # as a broker hands it over, unchecked
        await anyio.sleep(0.01)
        assert (await everything.receive()).subject == subject
        if answered:
            assert (await everything.receive()).subject == reply
            assert ear.node.refused == {}
        else:
            with pytest.raises(anyio.WouldBlock):
                everything.receive_nowait()
            assert ear.node.refused == {"reply": 1}

    with_ear(Role.TOKENIZER, test)


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "x" * 65, "ä", "a\n"])
def test_a_name_that_came_in_a_message_and_can_be_nobodys_is_an_error_of_the_bus(name: str) -> None:
    async def test(ear: Ear) -> None:
        with pytest.raises(NoPeer):
            await ear.node.send(Role.GATEWAY, name, Probe())
        with pytest.raises(NoPeer):
            await ear.node.call(Role.GATEWAY, name, Probe(), ProbeReply, timeout=1)

    with_ear(Role.SCHEDULER, test)


# --- Numbers ----------------------------------------------------------------------------------------------------------------


def beyond(value: Any) -> list[Any]:
    """Numbers of the same type that no honest peer sends."""
    if isinstance(value, float):
        return [float("nan"), float("inf"), float("-inf"), -1e300, 1e300]
    return [-(2**63), 2**63, 2**64 - 1]


BOUNDED: list[tuple[Any, msgspec.Struct, list[str]]] = [
    (messages.SchedulerInbox, Beat("ready", Profile("m"), term=1, number=1), ["term", "number"]),
    (messages.SchedulerInbox, LinkFrame(1, 1, 1, 1, 1), ["term", "seq", "ack", "last"]),
    (messages.TokenizerInbox, Hello(1, 1, 1, 1, Profile("m")), ["term"]),
    (HelloReply, HelloReply(1, Profile("m"), None, 1), ["term"]),
    (
        messages.SchedulerInbox,
        Open(RID, 1, "g", "t", bytes(4), SamplingParams(1), 1),
        ["attempt", "n", "priority", "deadline_ms", "age_ms"],
    ),
    (messages.SchedulerInbox, Cancel(RID, 1), ["attempt"]),
    (messages.SchedulerInbox, messages.Pin("o", "p", "g", 1), ["ttl_ms"]),
    (messages.SchedulerInbox, messages.Live(()), ["part", "parts", "number"]),
    (messages.WorkerLinkUp, Result(1, b"", b""), ["step", "forward_ms", "idle_ms", "mask_ms"]),
    (messages.StopAt, messages.StopAt(RID, 1, 0, 0), ["attempt", "child", "keep"]),
]


@pytest.mark.parametrize(("inbox", "message", "fields"), BOUNDED, ids=lambda one: type(one).__name__)
def test_numbers_out_of_all_bounds_are_malformed(inbox: Any, message: msgspec.Struct, fields: list[str]) -> None:
    codec: Codec[Any] = Codec(inbox)
    sender = Sender("gateway", "g", 1)
    assert codec.decode(encode(sender, message)) == Envelope(1, sender, message)
    for field in fields:
        for number in beyond(getattr(message, field)):
            changed = msgspec.structs.replace(message, **{field: number})
            with pytest.raises(msgspec.ValidationError):
                codec.decode(encode(sender, changed))


@pytest.mark.parametrize("field", [name for name in SamplingParams.__struct_fields__ if name not in ("ignore_eos",)])
def test_sampling_parameters_keep_to_their_ranges(field: str) -> None:
    """One row that is not a number would be one too many for the rows beside it."""
    codec: Codec[Any] = Codec(messages.SchedulerInbox)
    value = getattr(SamplingParams(1), field)
    ids: dict[str, list[Any]] = {
        "stop_token_ids": [(-1,), (2**32,)],
        "logit_bias": [((-1, 1.0),), ((1, float("nan")),), ((1, 1e9),)],
    }
    for wrong in ids.get(field) or beyond(value):
        params = msgspec.structs.replace(SamplingParams(1), **{field: wrong})
        with pytest.raises(msgspec.ValidationError):
            codec.decode(encode(GATEWAY, Open(RID, 1, "g", "t", bytes(4), params, 1)))


@pytest.mark.parametrize("field", ["page_size", "pages", "slots", "max_step_tokens", "context_length", "vocab_size"])
def test_a_worker_without_pages_or_with_more_than_there_can_be_is_malformed(field: str) -> None:
    good = WorkerProfile(16, 100, 4, 256, 1000, 300, (2,), "float32", "cpu")
    codec: Codec[Any] = Codec(HelloReply)
    for number in (0, -1, 2**40):
        profile = Profile("m", worker=msgspec.structs.replace(good, **{field: number}))
        with pytest.raises(msgspec.ValidationError):
            codec.decode(encode(GATEWAY, HelloReply(1, profile)))


@pytest.mark.parametrize("name", ["", "a.b", "*", "a b", "x" * 65, "g\n"])
def test_a_gateway_or_detokeniser_that_could_not_be_answered_is_malformed(name: str) -> None:
    codec: Codec[Any] = Codec(messages.SchedulerInbox)
    for gateway, detokeniser in ((name, "t"), ("g", name)):
        with pytest.raises(msgspec.ValidationError):
            codec.decode(encode(GATEWAY, Open(RID, 1, gateway, detokeniser, bytes(4), SamplingParams(1), 1)))


# --- Beats ------------------------------------------------------------------------------------------------------------------

WORKER = Sender("worker", "w", 5)


def beat(number: int, state: str = "ready", **rest: Any) -> Beat:
    return Beat(state, Profile("m"), number=number, **rest)


def test_a_beat_that_is_played_back_says_nothing() -> None:
    table = PeerTable([Role.WORKER])
    for number in (1, 2, 3):
        table.heard(WORKER, beat(number), 0.0, 0.0)
    for number in (1, 2, 3):
        assert table.heard(WORKER, beat(number, "draining"), 0.1, 0.1).refused == "stale"
    (peer,) = table.of(Role.WORKER)
    assert (peer.state, peer.heard_at) == ("ready", 0.0)
    assert table.heard(WORKER, beat(4, "draining"), 0.2, 0.2).changed is peer


def test_nobody_is_kept_alive_or_brought_back_with_former_beats() -> None:
    table = PeerTable([Role.WORKER])
    peer = table.heard(WORKER, beat(1), 0.0, 0.0).joined
    assert peer is not None
    table.heard(WORKER, beat(9), 0.1, 0.1)
    assert table.remove(peer)
    for number in (1, 9):
        assert table.heard(WORKER, beat(number), 5.0, 5.0).refused == "stale"
    assert table.of(Role.WORKER) == []
    assert table.heard(WORKER, beat(10), 6.0, 6.0).joined is not None  # it was not dead


def test_a_number_that_was_false_deafens_nobody_for_long() -> None:
    table = PeerTable([Role.WORKER])
    table.heard(WORKER, beat(1), 0.0, 0.0)
    table.heard(WORKER, beat(2**53), 0.1, 0.1)
    assert table.heard(WORKER, beat(3), 0.3, 0.3).refused == "stale"
    assert table.heard(WORKER, beat(8, "draining"), 2.0, 0.1 + GONE_S).changed is not None


def test_there_are_no_more_peers_than_connections() -> None:
    table = PeerTable([Role.WORKER])
    for number in range(peers._PEERS):
        assert table.heard(Sender("worker", f"w{number}", 1), beat(1), 0.0, 0.0).joined is not None
    assert table.heard(Sender("worker", "more", 1), beat(1), 0.0, 0.0).refused == "peers"
    assert table.heard(Sender("worker", "w7", 2), beat(1), 0.0, 0.0).joined is not None  # restarted


@pytest.mark.parametrize(
    "false",
    [
        Beat("dead", Profile("m")),
        Beat("ready", Profile("m" * 1000)),
        Beat("ready", Profile("m", worker=WorkerProfile(1, 1, 1, 1, 1, 1, tuple(range(5000)), "f", "c"))),
        Beat("ready", Profile("m", worker=WorkerProfile(1, 1, 1, 1, 1, 1, (), "f" * 1000, "c"))),
        Beat("ready", Profile("m"), Load(running=2**60)),
        Beat("ready", Profile("m"), Load(counters={"phloem_scheduler_requests_live": 5.0})),  # somebody else's
        Beat("ready", Profile("m"), Load(counters={"phloem_worker_x\nphloem_gateway_requests_live 7": 5.0})),
        Beat("ready", Profile("m"), Load(counters={"phloem_worker_x_total": float("nan")})),
        Beat("ready", Profile("m"), Load(counters={"phloem_worker_x_total": 1e300})),
        Beat("ready", Profile("m"), Load(counters={f"phloem_worker_{n}_total": 1.0 for n in range(MOST_COUNTERS + 1)})),
    ],
)
def test_a_beat_that_would_fill_or_forge_what_others_show_is_not_believed(false: Beat) -> None:
    async def main(_: MockClock) -> None:
        broker = LocalBroker()
        async with anyio.create_task_group() as tasks:
            scheduler = await Actor(broker, Role.SCHEDULER, "s", [Role.WORKER]).start(tasks)
            raw = broker.connect()
            await raw.publish("ph.d.m.scheduler.all.worker", encode(WORKER, false))
            await anyio.sleep(0.01)
            assert scheduler.presence.peers(Role.WORKER) == []
            assert scheduler.node.refused == {"malformed": 1}
            tasks.cancel_scope.cancel()

    drive(main)


def test_true_beats_are_believed() -> None:
    counters = {"phloem_worker_steps_total": 1.0, "phloem_scheduler_requests_live": 0.0, "phloem_grammar_x_total": 2.0}
    assert believable(Role.SCHEDULER, Beat("ready", Profile("m"), Load(counters=counters)))
    assert not believable(Role.GATEWAY, Beat("ready", Profile("m"), Load(counters=counters)))


# --- Links ------------------------------------------------------------------------------------------------------------------


def test_frames_with_numbers_that_nobody_sends_change_nothing() -> None:
    sender, receiver = LinkCore(0, 0), LinkCore(0, 0)
    for body in (b"a", b"b"):
        sender.push(body, 0)
    frames = [sender.next_frame(0), sender.next_frame(0)]
    for ack in (3, 2**40, 2**53):
        assert sender.receive(0, ack, b"", 0, 0) == "numbers"
    assert sender.unacknowledged == 2
    for seq in (link_core.WINDOW_FRAMES + 1, 2**53):
        assert receiver.receive(seq, 0, b"far", 0, 0) == "numbers"
    for frame in frames:
        assert frame is not None
        assert receiver.receive(frame.seq, frame.ack, frame.body, 0, 0) == ""
        assert receiver.receive(frame.seq, frame.ack, b"false", 0, 0) == "duplicate"  # the first that came counts
        assert receiver.take() == frame.body
        receiver.applied(0)
        assert receiver.receive(frame.seq, frame.ack, b"false", 0, 0) == "duplicate"
    assert receiver.take() is None
    assert sender.receive(0, 2, b"", 0, 0) == ""
    assert sender.unacknowledged == 0


class Tap:
    """Keeps what the scheduler of a pair says to its worker."""

    def __init__(self, pair: Pair) -> None:
        self.heard: list[RawMessage] = []
        self._bus: LocalBus = pair.broker.connect()

    async def listen(self) -> None:
        async for message in await self._bus.subscribe("ph.d.m.worker.>"):
            self.heard.append(message)

    async def play(self, message: RawMessage, subject: str = "", reply: str | None = None) -> None:
        await self._bus.publish(subject or message.subject, message.data, reply=reply)

    def hellos(self) -> list[RawMessage]:
        return [message for message in self.heard if b"\xa5Hello" in message.data]


def test_everything_played_back_opens_closes_and_repeats_nothing() -> None:
    async def test(pair: Pair) -> None:
        async with anyio.create_task_group() as tasks:
            tap = Tap(pair)
            tasks.start_soon(tap.listen)
            await anyio.sleep(0.01)
            former = await pair.connect()
            former.send(plan(1))
            await until(lambda: pair.results == [1])
            link = await pair.connect()
            for step in (2, 3):
                link.send(plan(step))
            await until(lambda: pair.results == [1, 2, 3])
            events, plans, sessions = list(pair.events), list(pair.plans), len(pair.accepted)
            assert len(tap.hellos()) == 2
            for message in list(tap.heard):
                for _ in range(3):
                    await tap.play(message)
                    await tap.play(message, "ph.d.m.worker.all.scheduler")
            await anyio.sleep(0.5)
            assert (pair.events, pair.plans, len(pair.accepted)) == (events, plans, sessions)
            assert link.open
            link.send(plan(4))
            await until(lambda: pair.results[-1] == 4)
            refused = pair.worker.node.refused
            assert {"session", "duplicate", "stale", "no_reply"} <= set(refused), refused
            tasks.cancel_scope.cancel()

    with_pair(test)


def test_a_hello_is_answered_again_while_its_link_is_open_and_never_opens_another() -> None:
    async def test(pair: Pair) -> None:
        node = pair.scheduler.node
        hello = Hello(5, 0, 1, 1, Profile("m"))
        for _ in range(3):
            assert (await node.call(Role.WORKER, "w", hello, HelloReply, timeout=1)).error is None
        assert pair.events == ["worker open"]
        await node.call(Role.WORKER, "w", Hello(6, 0, 1, 1, Profile("m")), HelloReply, timeout=1)
        again = await node.call(Role.WORKER, "w", hello, HelloReply, timeout=1)
        assert again.error is not None
        assert again.error.code == "stale"
        assert pair.events == ["worker open", "worker lost True", "worker open"]

    with_pair(test)


def test_a_hello_that_was_refused_is_not_let_in_later() -> None:
    async def test(pair: Pair) -> None:
        admits = [ErrorInfo("fenced", "not now"), None]

        async def admit(_: Received[Hello]) -> ErrorInfo | None:
            return admits.pop(0)

        pair.admit = admit
        hello = Hello(5, 0, 1, 1, Profile("m"))
        for code in ("fenced", "stale"):
            reply = await pair.scheduler.node.call(Role.WORKER, "w", hello, HelloReply, timeout=1)
            assert reply.error is not None
            assert reply.error.code == code
        assert pair.events == []

    with_pair(test)


def test_a_hello_for_somebody_else_opens_nothing() -> None:
    async def test(pair: Pair) -> None:
        hello = Hello(5, 0, 1, 1, Profile("m"), "another")
        reply = await pair.scheduler.node.call(Role.WORKER, "w", hello, HelloReply, timeout=1)
        assert reply.error is not None
        assert reply.error.code == "mismatch"
        assert pair.events == []

    with_pair(test)


def test_a_hello_with_a_profile_of_any_size_is_refused() -> None:
    async def test(pair: Pair) -> None:
        large = Hello(5, 0, 1, 1, Profile("m" * 1_000_000))
        reply = await pair.scheduler.node.call(Role.WORKER, "w", large, HelloReply, timeout=1)
        assert reply.error is not None
        assert reply.error.code == "mismatch"
        assert pair.events == []
        pair.worker.profile = Profile("m", model_digest="d" * 1_000_000)
        with pytest.raises(HelloRefused):
            await pair.connect()

    with_pair(test)


def test_a_state_that_there_is_not_is_not_taken_over_from_a_probe() -> None:
    async def main(_: MockClock) -> None:
        broker = LocalBroker()
        async with anyio.create_task_group() as tasks:
            scheduler = await Actor(broker, Role.SCHEDULER, "s", [Role.WORKER]).start(tasks)
            odd = Node(
                broker.connect(),
                role=Role.WORKER,
                instance="w",
                incarnation=5,
                namespace="d",
                model="m",
                rng=random.Random(0),
            )

            async def answer(_: Received[Probe]) -> ProbeReply:
                return ProbeReply("?" * 1000)

            odd.serve(Probe, answer, limit=1, busy=lambda _: ProbeReply())
            await tasks.start(odd.run, INBOXES[Role.WORKER])
            await broker.connect().publish("ph.d.m.scheduler.all.worker", encode(WORKER, beat(1)))
            await anyio.sleep(1)  # silent for long enough to be asked
            (peer,) = scheduler.presence.peers(Role.WORKER)
            assert (peer.state, peer.suspect) == ("ready", False)
            tasks.cancel_scope.cancel()

    drive(main)


def test_links_of_strangers_are_bounded_and_leave_room_for_those_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phloem_bus.link._LINKS", 3)

    async def test(pair: Pair) -> None:
        link: Link = await pair.connect()
        codes = []
        for number in range(4):
            ghost = Actor(pair.broker, Role.SCHEDULER, f"ghost{number}", [])
            hello = Hello(number, 0, 1, 1, Profile("m"))
            async with anyio.create_task_group() as tasks:
                await tasks.start(ghost.node.run, INBOXES[Role.SCHEDULER])
                reply = await ghost.node.call(Role.WORKER, "w", hello, HelloReply, timeout=1)
                tasks.cancel_scope.cancel()
            codes.append(reply.error.code if reply.error is not None else "")
        assert codes == ["", "", "busy", "busy"]
        assert link.open
        assert (await pair.connect()).open  # its place is its own

    with_pair(test)
