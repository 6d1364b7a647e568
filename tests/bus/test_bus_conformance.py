"""What every bus promises: one suite for the local one (asyncio and trio) and for NATS."""

from __future__ import annotations

import anyio
import pytest

from phloem_bus.bus import Bus, Subscription
from phloem_bus.errors import Disconnected, NoResponders, PayloadTooLarge, TimedOut
from phloem_bus.local import LocalBus
from phloem_bus.nats import NatsBus

from .worlds import Connect, World


async def take(subscription: Subscription, count: int) -> list[bytes]:
    with anyio.fail_after(10):
        return [(await subscription.receive()).data for _ in range(count)]


async def nothing_more(bus: Bus, subscription: Subscription) -> None:
    """Whatever was published before this has arrived or never will."""
    await bus.flush()
    await anyio.sleep(0.05)
    with pytest.raises(anyio.WouldBlock):
        subscription.receive_nowait()


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.b", "a.b", "a.c"),
        ("a.*", "a.b", "a.b.c"),
        ("a.*.c", "a.b.c", "a.b.d"),
        ("a.>", "a.b.c.d", "a"),
        ("*.b", "x.b", "x.y.b"),
        (">", "x", None),
    ],
)
def test_subjects_match_as_in_nats(world: World, pattern: str, matching: str, other: str | None) -> None:
    async def main(connect: Connect) -> None:
        receiver, sender = await connect(), await connect()
        subscription = await receiver.subscribe(pattern)
        if other is not None:
            await sender.publish(other, b"no")
        await sender.publish(matching, b"yes", reply="back")
        with anyio.fail_after(10):
            message = await subscription.receive()
        assert (message.subject, message.data, message.reply) == (matching, b"yes", "back")

    world.run(main)


@pytest.mark.parametrize("subject", ["", "a..b", "a b", ".a", "a.", "a\r\nPUB x 0", "a\0", 'a"b', "a\\b", "a.ü"])
def test_what_is_no_subject_is_refused(world: World, subject: str) -> None:
    async def main(connect: Connect) -> None:
        bus = await connect()
        with pytest.raises(ValueError, match="not a subject"):
            await bus.publish(subject, b"")
        with pytest.raises(ValueError, match="not a subject"):
            await bus.subscribe(subject)
        await bus.flush()
        assert bus.connected

    world.run(main)


def test_order_holds_per_publisher_and_subscription(world: World) -> None:
    async def main(connect: Connect) -> None:
        receiver, sender = await connect(), await connect()
        subscription = await receiver.subscribe("s.*")
        for number in range(2000):
            await sender.publish(f"s.{number % 7}", str(number).encode())
        assert await take(subscription, 2000) == [str(number).encode() for number in range(2000)]

    world.run(main)


def test_each_subscription_gets_a_copy_and_each_queue_one(world: World) -> None:
    async def main(connect: Connect) -> None:
        buses = [await connect() for _ in range(3)]
        alone = [await bus.subscribe("s") for bus in buses[:2]]
        group = [await bus.subscribe("s", queue="q") for bus in buses]
        for number in range(90):
            await buses[0].publish("s", str(number).encode())
        for subscription in alone:
            assert len(await take(subscription, 90)) == 90
        shares = [await drain(bus, subscription) for bus, subscription in zip(buses, group, strict=True)]
        assert sorted(int(data) for share in shares for data in share) == list(range(90))
        assert all(len(share) >= 10 for share in shares)  # chance below one in a million, else

    async def drain(bus: Bus, subscription: Subscription) -> list[bytes]:
        await bus.flush()
        await anyio.sleep(0.05)
        found = []
        while True:
            try:
                found.append(subscription.receive_nowait().data)
            except anyio.WouldBlock:
                return found

    world.run(main)


def test_a_full_subscription_drops_the_newest_counts_and_holds_nobody_up(world: World) -> None:
    async def main(connect: Connect) -> None:
        receiver, sender = await connect(), await connect()
        slow = await receiver.subscribe("s", capacity=10)
        quick = await receiver.subscribe("s", capacity=1000)
        with anyio.fail_after(5):
            for number in range(500):
                await sender.publish("s", str(number).encode())
        assert await take(quick, 500) == [str(number).encode() for number in range(500)]
        assert await take(slow, 10) == [str(number).encode() for number in range(10)]
        assert slow.dropped == 490
        assert quick.dropped == 0

    world.run(main)


def test_a_request_gets_its_reply(world: World) -> None:
    async def main(connect: Connect) -> None:
        server, client = await connect(), await connect()
        subscription = await server.subscribe("double")

        async def serve() -> None:
            async for message in subscription:
                assert message.reply is not None
                await server.publish(message.reply, message.data * 2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            replies: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                replies[number] = await client.request("double", str(number).encode(), timeout=10)

            async with anyio.create_task_group() as clients:
                for number in range(200):
                    clients.start_soon(ask, number)
            tasks.cancel_scope.cancel()
        assert replies == {number: str(number).encode() * 2 for number in range(200)}

    world.run(main)


def test_a_request_where_nobody_listens_fails_at_once(world: World) -> None:
    async def main(connect: Connect) -> None:
        bus = await connect()
        with anyio.fail_after(1), pytest.raises(NoResponders):
            await bus.request("nobody", b"", timeout=30)

    world.run(main)


def test_a_request_without_reply_times_out(world: World) -> None:
    async def main(connect: Connect) -> None:
        server, client = await connect(), await connect()
        await server.subscribe("silent")
        with anyio.fail_after(2), pytest.raises(TimedOut):
            await client.request("silent", b"", timeout=0.1)

    world.run(main)


def test_an_empty_reply_is_a_reply(world: World) -> None:
    async def main(connect: Connect) -> None:
        server, client = await connect(), await connect()
        subscription = await server.subscribe("s")

        async def serve() -> None:
            message = await subscription.receive()
            assert message.reply is not None
            await server.publish(message.reply, b"")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            assert await client.request("s", b"", timeout=5) == b""

    world.run(main)


def test_cancelled_requests_leave_nothing_behind(world: World) -> None:
    async def main(connect: Connect) -> None:
        server, client = await connect(), await connect()
        subscription = await server.subscribe("s", capacity=10000)

        async def ask() -> None:
            await client.request("s", b"", timeout=30)

        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(ask)
            with anyio.fail_after(10):
                late = [await subscription.receive() for _ in range(500)]
            tasks.cancel_scope.cancel()
        for message in late:
            assert message.reply is not None
            await server.publish(message.reply, b"too late")  # finds nobody, harms nobody
        await server.flush()
        if isinstance(client, NatsBus):
            assert client._requests.waiting == 0
        else:
            assert isinstance(client, LocalBus)
            assert not client._broker._inboxes
        with pytest.raises(TimedOut):
            await client.request("s", b"", timeout=0.05)

    world.run(main)


def test_a_cancelled_wait_loses_no_message(world: World) -> None:
    async def main(connect: Connect) -> None:
        receiver, sender = await connect(), await connect()
        subscription = await receiver.subscribe("s")
        received: list[bytes] = []
        for number in range(50):
            with anyio.move_on_after(0.001):
                received.append((await subscription.receive()).data)
            await sender.publish("s", str(number).encode())
        received += await take(subscription, 50 - len(received))
        assert received == [str(number).encode() for number in range(50)]

    world.run(main)


def test_a_publish_in_a_cancelled_scope_is_not_sent(world: World) -> None:
    async def main(connect: Connect) -> None:
        bus = await connect()
        subscription = await bus.subscribe("s")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await bus.publish("s", b"")
        assert scope.cancelled_caught
        await nothing_more(bus, subscription)

    world.run(main)


def test_the_largest_message_passes_and_one_byte_more_is_refused_before_sending(world: World) -> None:
    async def main(connect: Connect) -> None:
        bus = await connect()
        assert bus.max_payload == world.max_payload
        subscription = await bus.subscribe("s")
        await bus.publish("s", bytes(bus.max_payload), reply="some.inbox")
        assert len((await take(subscription, 1))[0]) == bus.max_payload
        with pytest.raises(PayloadTooLarge) as caught:
            await bus.publish("s", bytes(bus.max_payload + 1))
        assert (caught.value.size, caught.value.limit) == (bus.max_payload + 1, bus.max_payload)
        with pytest.raises(PayloadTooLarge):
            await bus.request("s", bytes(bus.max_payload + 1), timeout=1)
        await bus.flush()
        assert bus.connected
        await nothing_more(bus, subscription)

    world.run(main)


def test_a_closed_subscription_gives_what_it_holds_and_then_ends(world: World) -> None:
    async def main(connect: Connect) -> None:
        receiver, sender = await connect(), await connect()
        subscription = await receiver.subscribe("s")
        for number in range(3):
            await sender.publish("s", str(number).encode())
        await sender.flush()
        await receiver.flush()
        await anyio.sleep(0.05)
        await subscription.aclose()
        await receiver.flush()
        await sender.publish("s", b"after")
        assert [message.data async for message in subscription] == [b"0", b"1", b"2"]
        with pytest.raises(anyio.EndOfStream):
            subscription.receive_nowait()
        with pytest.raises(NoResponders):
            await sender.request("s", b"", timeout=5)

    world.run(main)


def test_a_closed_bus_ends_its_subscriptions_and_sends_no_more(world: World) -> None:
    async def main(connect: Connect) -> None:
        bus = await connect()
        subscription = await bus.subscribe("s")
        ended = anyio.Event()

        async def wait() -> None:
            async for _ in subscription:
                pass
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.01)
            await bus.aclose()
            with anyio.fail_after(5):
                await ended.wait()
        assert not bus.connected
        for attempt in (bus.publish("s", b""), bus.flush()):
            with pytest.raises(Disconnected):
                await attempt
        with pytest.raises(Disconnected):
            await bus.subscribe("s")

    world.run(main)
