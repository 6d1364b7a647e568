"""Node, presence and links over a real broker, also while it restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from phloem_bus.link import Link
from phloem_bus.nats import NatsBus
from phloem_bus.nats_client import NatsOptions
from phloem_bus.node import Received
from phloem_proto.messages import ErrorInfo, Hello, Plan, Profile, Result, WorkerLinkDown, WorkerLinkUp
from phloem_proto.subjects import Role

from .actors import Actor
from .server import NatsServer


def test_a_link_loses_nothing_and_nobody_dies_while_the_broker_restarts(own_nats_server: NatsServer) -> None:
    server = own_nats_server
    plans: list[int] = []
    results: list[int] = []
    lost: list[Link] = []

    async def admit(_: Received[Hello]) -> ErrorInfo | None:
        return None

    def on_plan(link: Link, message: Plan) -> None:
        plans.append(message.step)
        link.send(Result(message.step, b"", b""))

    async def until(condition: Callable[[], bool], seconds: float = 15) -> None:
        with anyio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - nothing here tells
                await anyio.sleep(0.01)

    async def run(tasks: anyio.abc.TaskGroup, buses: list[NatsBus]) -> None:
        scheduler = Actor(buses[0], Role.SCHEDULER, "s", [Role.WORKER], incarnation=1)
        worker = Actor(buses[1], Role.WORKER, "w", [Role.SCHEDULER], incarnation=2)
        worker.links.accept(
            Role.SCHEDULER,
            receives=WorkerLinkDown,
            profile=lambda: worker.profile,
            admit=admit,
            on_open=lambda _: None,
            on_message=on_plan,
            on_gone=lost.append,
        )
        await scheduler.start(tasks)
        await worker.start(tasks)
        await until(lambda: bool(scheduler.presence.peers(Role.WORKER)))
        link = await scheduler.links.connect(
            scheduler.presence.peers(Role.WORKER)[0],
            receives=WorkerLinkUp,
            on_message=lambda _, message: results.append(message.step),
            on_gone=lost.append,
            profile=Profile("m"),
        )
        await exchange(link, buses)
        assert [what for what, _ in scheduler.news if what == "gone"] == []

    async def exchange(link: Link, buses: list[NatsBus]) -> None:
        for step in range(200):
            link.send(Plan(step, b"", b""))
            if step == 100:
                await until(lambda: len(results) > 50)
                await anyio.to_thread.run_sync(server.stop)
                await until(lambda: not buses[0].connected)
        await anyio.sleep(2.5)  # longer than silence may last otherwise
        await anyio.to_thread.run_sync(server.start)
        await until(lambda: len(results) == 200)

    async def main() -> None:
        buses = [await NatsBus.connect(NatsOptions(server.url)) for _ in range(2)]
        try:
            await with_tasks(lambda tasks: run(tasks, buses))
        finally:
            for bus in buses:
                await bus.aclose()

    async def with_tasks(work: Callable[[anyio.abc.TaskGroup], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as tasks:
            await work(tasks)
            tasks.cancel_scope.cancel()

    anyio.run(main, backend_options={"use_uvloop": True})
    assert plans == results == list(range(200))
    assert lost == []
