"""A node: what is dispatched, what is refused and counted, and how calls are served."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from phloem_bus.errors import BusError, Disconnected, NoResponders, PayloadTooLarge, TimedOut
from phloem_bus.local import LocalBroker
from phloem_bus.node import Node, Received
from phloem_proto import subjects
from phloem_proto.codec import Envelope, Sender, encode
from phloem_proto.messages import (
    Cancel,
    Compile,
    Encode,
    Encoded,
    ErrorInfo,
    GrammarSpec,
    Lost,
    Probe,
    ProbeReply,
    TokenizerInbox,
    Verdict,
)
from phloem_proto.subjects import Role

from .actors import INBOXES, drive


def make(broker: LocalBroker, role: Role, instance: str) -> Node:
    return Node(
        broker.connect(instance),
        role=role,
        instance=instance,
        incarnation=1,
        namespace="d",
        model="m",
        rng=random.Random(0),
    )


def with_nodes(test: Callable[[Node, Node, LocalBroker], Awaitable[None]]) -> None:
    """Run ``test`` with a gateway and a tokenizer that listen."""

    async def main(_: MockClock) -> None:
        broker = LocalBroker()
        gateway, tokenizer = make(broker, Role.GATEWAY, "g"), make(broker, Role.TOKENIZER, "t")
        async with anyio.create_task_group() as tasks:
            await tasks.start(gateway.run, INBOXES[Role.GATEWAY])
            await tasks.start(tokenizer.run, INBOXES[Role.TOKENIZER])
            await test(gateway, tokenizer, broker)
            tasks.cancel_scope.cancel()

    drive(main)


def test_messages_reach_handlers_in_order_of_arrival_and_registration() -> None:
    async def test(gateway: Node, tokenizer: Node, _: LocalBroker) -> None:
        seen: list[tuple[str, int, Sender]] = []
        tokenizer.on(Cancel, lambda received: seen.append(("first", received.message.attempt, received.sender)))
        tokenizer.on(Cancel, lambda received: seen.append(("second", received.message.attempt, received.sender)))
        for attempt in range(600):
            await gateway.send(Role.TOKENIZER, "t", Cancel(b"r", attempt))
        await gateway.send(Role.TOKENIZER, subjects.ALL, Cancel(b"r", 600))
        await anyio.sleep(0.1)
        assert seen == [(who, attempt, gateway.sender) for attempt in range(601) for who in ("first", "second")]
        await gateway.send(Role.TOKENIZER, "another", Cancel(b"r", 1))
        await gateway.send(Role.SCHEDULER, "t", Cancel(b"r", 1))
        await anyio.sleep(0.1)
        assert len(seen) == 1202
        assert tokenizer.refused == {}

    with_nodes(test)


def test_what_is_malformed_forged_or_unwanted_is_dropped_and_counted() -> None:
    async def test(gateway: Node, tokenizer: Node, broker: LocalBroker) -> None:
        seen: list[Cancel] = []
        tokenizer.on(Cancel, lambda received: seen.append(received.message))
        raw = broker.connect()
        subject = "ph.d.m.tokenizer.t.gateway"
        whole = encode(gateway.sender, Cancel(b"r", 1))
        for data in (b"", b"\xc1", whole[:-1], encode(gateway.sender, Lost(())), b"\x93" * 3000):
            await raw.publish(subject, data)
        await raw.publish(
            subject, encode(Sender("scheduler", "s", 1), Cancel(b"r", 2))
        )  # another role than the subject says
        for instance in ("a.b", "", "*", "all"):  # no instance that could be answered
            await raw.publish(subject, encode(Sender("gateway", instance, 1), Cancel(b"r", 2)))
        await raw.publish("ph.d.m.tokenizer.t.printer", encode(Sender("printer", "p", 1), Cancel(b"r", 2)))
        await raw.publish(subject, msgspec.msgpack.encode(Envelope(0, gateway.sender, Cancel(b"r", 3))))
        await raw.publish(subject, encode(gateway.sender, Probe()))  # of the union, and nobody asked for it
        await raw.publish(subject, whole)
        await anyio.sleep(0.1)
        assert seen == [Cancel(b"r", 1)]
        assert tokenizer.refused == {"malformed": 5, "sender": 6, "version": 1, "unhandled": 1}

    with_nodes(test)


def test_a_handler_that_raises_is_counted_and_the_next_message_handled() -> None:
    async def test(gateway: Node, tokenizer: Node, _: LocalBroker) -> None:
        seen: list[int] = []

        def fail(received: Received[Cancel]) -> None:
            if received.message.attempt == 1:
                raise RuntimeError("no")

        tokenizer.on(Cancel, fail)
        tokenizer.on(Cancel, lambda received: seen.append(received.message.attempt))
        for attempt in range(3):
            await gateway.send(Role.TOKENIZER, "t", Cancel(b"r", attempt))
        await anyio.sleep(0.1)
        assert seen == [0, 1, 2]
        assert tokenizer.refused == {"failed": 1}

    with_nodes(test)


def test_calls_run_beside_each_other_up_to_the_limit_and_further_ones_are_told() -> None:
    async def test(gateway: Node, tokenizer: Node, _: LocalBroker) -> None:
        running = 0
        most = 0

        async def serve(received: Received[Encode]) -> Encoded:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(1)
            running -= 1
            return Encoded((received.message.texts[0].encode(),))

        tokenizer.serve(Encode, serve, limit=3, busy=lambda _: Encoded(error=ErrorInfo("busy", "")))
        answers: list[Encoded] = []

        async def ask(number: int) -> None:
            answers.append(await gateway.call(Role.TOKENIZER, "t", Encode((str(number),)), Encoded, timeout=5))

        for _round in range(2):  # the second time shows that places are given back
            answers.clear()
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(ask, number)
            assert sum(answer.error is not None for answer in answers) == 2
            assert len({answer.ids for answer in answers if answer.error is None}) == 3
        assert most == 3

    with_nodes(test)


def test_a_call_fails_by_what_went_wrong() -> None:
    async def test(gateway: Node, tokenizer: Node, broker: LocalBroker) -> None:
        async def fail(_: Received[Encode]) -> Encoded:
            raise RuntimeError("no")

        async def large(_: Received[Probe]) -> Encoded:
            return Encoded((bytes(broker.max_payload),))

        tokenizer.serve(Encode, fail, limit=1, busy=lambda _: Encoded())
        tokenizer.serve(Probe, large, limit=1, busy=lambda _: Encoded())
        with pytest.raises(NoResponders):
            await gateway.call(Role.TOKENIZER, "nobody", Probe(), ProbeReply, timeout=5)
        with pytest.raises(TimedOut):
            await gateway.call(Role.TOKENIZER, "t", Encode(("x",)), Encoded, timeout=0.5)
        with pytest.raises(TimedOut):
            await gateway.call(Role.TOKENIZER, "t", Probe(), Encoded, timeout=0.5)
        with pytest.raises(PayloadTooLarge):
            await gateway.call(Role.TOKENIZER, "t", Encode(("x" * broker.max_payload,)), Encoded, timeout=5)
        assert tokenizer.refused == {"failed": 2}
        broker.stop()
        with pytest.raises(Disconnected):
            await gateway.call(Role.TOKENIZER, "t", Probe(), ProbeReply, timeout=5)

    with_nodes(test)


def test_a_reply_of_another_kind_or_role_is_an_error() -> None:
    async def test(gateway: Node, tokenizer: Node, broker: LocalBroker) -> None:
        async def serve(_: Received[Encode]) -> Encoded:
            return Encoded()

        tokenizer.serve(Encode, serve, limit=1, busy=lambda _: Encoded())
        with pytest.raises(BusError, match="no Verdict"):
            await gateway.call(Role.TOKENIZER, "t", Encode(("x",)), Verdict, timeout=5)
        bus = broker.connect()
        subscription = await bus.subscribe("ph.d.m.grammar.x.*")

        async with anyio.create_task_group() as tasks:

            async def forge() -> None:
                message = await subscription.receive()
                assert message.reply is not None
                await bus.publish(message.reply, encode(tokenizer.sender, Verdict()))

            tasks.start_soon(forge)
            with pytest.raises(BusError, match="came from a tokenizer"):
                await gateway.call(Role.GRAMMAR, "x", Compile(GrammarSpec("regex", "a")), Verdict, timeout=5)

    with_nodes(test)


def test_a_call_that_came_through_a_handler_can_be_answered_later() -> None:
    async def test(gateway: Node, tokenizer: Node, broker: LocalBroker) -> None:
        waiting: list[Received[Encode]] = []
        tokenizer.on(Encode, waiting.append)
        async with anyio.create_task_group() as tasks:

            async def answer() -> None:
                await anyio.sleep(1)
                await tokenizer.respond(waiting[0], Encoded((b"late",)))

            tasks.start_soon(answer)
            reply = await gateway.call(Role.TOKENIZER, "t", Encode(("x",)), Encoded, timeout=5)
        assert reply == Encoded((b"late",))
        await gateway.send(Role.TOKENIZER, "t", Encode(("x",)))
        await anyio.sleep(0.1)
        await tokenizer.respond(waiting[1], Encoded())  # wants no answer
        broker.stop()
        await tokenizer.respond(waiting[0], Encoded())  # can't get one

    with_nodes(test)


def test_a_node_whose_bus_is_closed_ends_with_an_error() -> None:
    async def main(_: MockClock) -> None:
        node = make(LocalBroker(), Role.TOKENIZER, "t")

        async def close() -> None:
            await anyio.sleep(1)
            await node.bus.aclose()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            with pytest.raises(Disconnected):
                await node.run(TokenizerInbox)

    drive(main)


def test_a_node_waits_for_a_bus_that_is_down_at_its_start() -> None:
    async def main(_: MockClock) -> None:
        broker = LocalBroker()
        gateway, tokenizer = make(broker, Role.GATEWAY, "g"), make(broker, Role.TOKENIZER, "t")
        got: list[Cancel] = []
        tokenizer.on(Cancel, lambda received: got.append(received.message))
        broker.stop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tokenizer.run, TokenizerInbox)
            await anyio.sleep(5)
            broker.start()
            await anyio.sleep(1)
            await gateway.send(Role.TOKENIZER, "t", Cancel(b"r", 1))
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        assert got == [Cancel(b"r", 1)]

    drive(main)
