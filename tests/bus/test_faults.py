"""The local bus under seeded trouble: what it may do to messages, and what it may not."""

from __future__ import annotations

import random

import anyio
from trio.testing import MockClock

from phloem_bus.bus import RawMessage
from phloem_bus.errors import NoResponders
from phloem_bus.faults import Faults
from phloem_bus.local import LocalBroker

from .actors import drive


def scene(seed: int, drop: float = 0.0) -> list[tuple[int, RawMessage, float]]:
    """Two publishers, two subscriptions: what arrived where and when."""
    arrived: list[tuple[int, RawMessage, float]] = []

    async def test(_: MockClock) -> None:
        faults = Faults(random.Random(seed), delay_s=(0.0, 1.0), drop=drop)
        broker = LocalBroker(faults=faults)
        publishers = [broker.connect("p0"), broker.connect("p1")]
        receivers = [broker.connect("r0"), broker.connect("r1")]
        start = anyio.current_time()

        async def receive(number: int) -> None:
            async for message in await receivers[number].subscribe(f"s.{number}"):
                arrived.append((number, message, round(anyio.current_time() - start, 9)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run)
            for number in range(2):
                tasks.start_soon(receive, number)
            await anyio.sleep(0.1)
            for count in range(100):
                for number, publisher in enumerate(publishers):
                    for target in range(2):
                        await publisher.publish(f"s.{target}", f"{number}.{count}".encode())
                await anyio.sleep(0.01)
            await anyio.sleep(5)
            tasks.cancel_scope.cancel()
        assert len(arrived) + faults.lost == 400

    drive(test, seed=seed)
    return arrived


def test_delays_keep_order_per_publisher_and_subscription_and_no_other() -> None:
    arrived = scene(1)
    assert len(arrived) == 400
    for target in range(2):
        for publisher in range(2):
            counts = [int(m.data[2:]) for to, m, _ in arrived if to == target and m.data.startswith(b"%d." % publisher)]
            assert counts == list(range(100))
    mixed = [message.data for to, message, _ in arrived if to == 0]
    assert mixed != sorted(mixed, key=lambda data: (int(data[2:]), data))  # publishers overtook each other


def test_equal_seeds_lose_the_same_messages_at_the_same_times() -> None:
    assert scene(2, drop=0.3) == scene(2, drop=0.3)
    assert 200 < len(scene(2, drop=0.3)) < 360
    assert scene(2, drop=0.3) != scene(3, drop=0.3)


def test_a_partition_loses_everything_between_two_and_nothing_else() -> None:
    async def test(_: MockClock) -> None:
        faults = Faults(random.Random(0))
        broker = LocalBroker(faults=faults)
        one, other, third = broker.connect("one"), broker.connect("other"), broker.connect("third")
        subscription = await other.subscribe("s")
        faults.partition("one", "other")
        await one.publish("s", b"lost")
        await third.publish("s", b"kept")
        assert (await subscription.receive()).data == b"kept"
        faults.heal()
        await one.publish("s", b"back")
        assert (await subscription.receive()).data == b"back"

    drive(test)


def test_a_broker_that_stops_loses_what_is_under_way_and_keeps_subscriptions() -> None:
    async def test(_: MockClock) -> None:
        faults = Faults(random.Random(0), delay_s=(1.0, 1.0))
        broker = LocalBroker(faults=faults)
        bus = broker.connect("a")
        subscription = await bus.subscribe("s")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(faults.run)
            await bus.publish("s", b"lost")
            broker.stop()
            await anyio.sleep(2)
            assert not bus.connected
            broker.start()
            assert bus.connected_since == anyio.current_time()
            await bus.publish("s", b"kept")
            assert (await subscription.receive()).data == b"kept"
            tasks.cancel_scope.cancel()

    drive(test)


def test_a_killed_connection_listens_no_more_and_loses_what_it_held() -> None:
    async def test(_: MockClock) -> None:
        broker = LocalBroker()
        bus, other = broker.connect("a"), broker.connect("b")
        subscription = await bus.subscribe("s")
        await other.publish("s", b"held")
        bus.kill()
        assert [message async for message in subscription] == []
        try:
            await other.request("s", b"", timeout=1)
        except NoResponders:
            return
        raise AssertionError("a killed connection still listens")

    drive(test)
