"""A node that joins a group: it hears what is published to it for as long as it likes, and nothing before or after."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from phloem_bus.bus import Bus
from phloem_bus.node import Node
from phloem_proto import subjects
from phloem_proto.messages import KvEvents, Lost
from phloem_proto.subjects import Role

from .actors import INBOXES
from .worlds import Connect, World


def make(bus: Bus, role: Role, instance: str) -> Node:
    return Node(bus, role=role, instance=instance, incarnation=1, namespace="d", model="m", rng=random.Random(0))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5.0):
        while not condition():  # noqa: ASYNC110 - what is waited for is a list that a handler fills
            await anyio.sleep(0.005)


def change(seq: int) -> KvEvents:
    return KvEvents("worker", 1, seq, 16)


def test_a_group_is_heard_while_joined_and_only_by_its_role(world: World) -> None:
    async def test(connect: Connect) -> None:
        scheduler, gateway = (
            make(await connect(), Role.SCHEDULER, "s"),
            make(await connect(), Role.GATEWAY, "g"),
        )
        heard: list[int] = []
        lost: list[str] = []
        gateway.on(KvEvents, lambda received: heard.append(received.message.seq))
        gateway.on(Lost, lambda received: lost.append(received.message.reason))

        async def publish(*numbers: int) -> None:
            """Events to the group, then something to the gateway itself, so that all of it has come when that has."""
            for number in numbers:
                await scheduler.send(Role.GATEWAY, subjects.KV, change(number))
                await scheduler.send(Role.WORKER, subjects.KV, change(number))
            await scheduler.send(Role.GATEWAY, "g", Lost((), str(numbers)))
            await until(lambda: lost[-1:] == [str(numbers)])

        async with anyio.create_task_group() as tasks:
            await tasks.start(gateway.run, INBOXES[Role.GATEWAY])
            await publish(1, 2)
            async with anyio.create_task_group() as joined:
                await joined.start(gateway.join, subjects.KV, KvEvents)
                await publish(3, 4, 5)
                await until(lambda: heard == [3, 4, 5])
                joined.cancel_scope.cancel()
            await publish(6)
            async with anyio.create_task_group() as joined:
                await joined.start(gateway.join, subjects.KV, KvEvents)
                await publish(7)
                await until(lambda: heard == [3, 4, 5, 7])
                joined.cancel_scope.cancel()
            assert gateway.refused == {}
            tasks.cancel_scope.cancel()

    world.run(test)


def test_what_does_not_belong_into_a_group_is_refused(world: World) -> None:
    async def test(connect: Connect) -> None:
        scheduler, gateway = make(await connect(), Role.SCHEDULER, "s"), make(await connect(), Role.GATEWAY, "g")
        async with anyio.create_task_group() as joined:
            await joined.start(gateway.join, subjects.KV, KvEvents)
            await scheduler.send(Role.GATEWAY, subjects.KV, Lost(()))
            await until(lambda: gateway.refused == {"malformed": 1})
            joined.cancel_scope.cancel()

    world.run(test)
