"""Streams that are silent but live, as during a long prefill: kept open by pings; clients that don't answer them are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from phloem_gateway.config import GatewayConfig
from phloem_proto.v1 import phloem_pb2 as pb

from .backend import Script
from .grpc_client import Client
from .http2 import DATA, GOAWAY, Connection
from .world import World, world

pytestmark = pytest.mark.anyio

KEEP_ALIVE_S = 0.6
"""Far more than a busy machine keeps a test waiting."""
GENERATE = "/phloem.v1.Phloem/Generate"


@pytest.fixture
async def made() -> AsyncIterator[World]:
    async with world(GatewayConfig(http_port=None, grpc_port=0, keep_alive_s=KEEP_ALIVE_S)) as one:
        yield one


async def test_a_silent_stream_is_pinged_for_as_long_as_it_takes(made: World) -> None:
    made.backend.scheduler.script = Script(hold=anyio.Event())
    async with await anyio.connect_tcp("127.0.0.1", made.service.grpc_port or 0) as stream:
        connection = Connection(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.read)
            await connection.call(GENERATE, pb.GenerateRequest(text="hi").SerializeToString())
            await made.until(lambda: connection.pings >= 5, timeout_s=30.0)
            assert (DATA in connection.kinds, GOAWAY in connection.kinds) == (False, False)
            assert len(made.gateway.core.live) == 1
            made.backend.scheduler.script.hold.set()  # type: ignore[union-attr]
            await made.until(lambda: DATA in connection.kinds)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("answers", [0, 1, 3])
@pytest.mark.parametrize("talking", [False, True], ids=["silent", "talking"])
async def test_a_client_that_answers_no_more_pings_is_gone(made: World, talking: bool, answers: int) -> None:
    scheduler = made.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4 if talking else None)
    async with await anyio.connect_tcp("127.0.0.1", made.service.grpc_port or 0) as stream:
        connection = Connection(stream, answers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.read)
            await connection.call(GENERATE, pb.GenerateRequest(text="hi").SerializeToString())
            await made.until(lambda: bool(scheduler.running))
            with anyio.fail_after(30.0):
                await connection.closed.wait()
    await made.until(lambda: not scheduler.running and not made.gateway.core.live)
    assert connection.pings == answers + 1
    assert len(scheduler.cancelled) == 1


async def test_a_client_may_ping_as_often_as_it_likes(made: World) -> None:
    scheduler = made.backend.scheduler
    scheduler.script = Script(hold=anyio.Event())
    options = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    client = await Client.connect(made.service.grpc_port or 0, options=options)
    try:
        async with anyio.create_task_group() as tasks:
            answers: list[object] = []

            async def call() -> None:
                answers.extend(await client.generate(client.message("GenerateRequest", text="hi")))

            tasks.start_soon(call)
            await made.until(lambda: bool(scheduler.running))
            await anyio.sleep(1.5)  # some 30 pings: two too many would be an end with "too_many_pings"
            scheduler.script.hold.set()  # type: ignore[union-attr]
        assert answers
        assert len(scheduler.opened) == 1
    finally:
        await client.close()
