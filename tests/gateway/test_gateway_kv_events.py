"""The gRPC stream ``KvEvents``: what the scheduler publishes of its workers' caches, as routers take it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from phloem_bus.errors import NoResponders, TimedOut
from phloem_gateway import kv_events, kv_stream
from phloem_gateway.config import GatewayConfig
from phloem_proto import messages as m
from phloem_proto.subjects import KV, Role

from .cache_backend import PAGE, FakeCache, batch, removed, stored
from .grpc_client import Client, trailing
from .world import World, world

pytestmark = pytest.mark.anyio

CONFIG = GatewayConfig(http_port=None, grpc_port=0)


@asynccontextmanager
async def listening(client: Client, **fields: Any) -> AsyncIterator[Any]:
    """An open stream: events are being published when it is entered."""
    call = client.method("KvEvents")(client.message("KvEventsRequest", **fields))
    with anyio.fail_after(10):
        assert dict(await call.initial_metadata())["x-request-id"]
    try:
        yield call
    finally:
        call.cancel()


async def next_of(call: Any) -> Any:
    with anyio.fail_after(10):
        return await call.read()


async def ends_with(call: Any) -> grpc.aio.AioRpcError:
    """Read to the end, which must be an error."""
    with anyio.fail_after(20):
        try:
            while await call.read():
                pass
        except grpc.aio.AioRpcError as error:
            return error
    raise AssertionError("the stream ended without an error")


async def test_events_come_in_the_fields_usual_shape(shared: World, cache: FakeCache, client: Client) -> None:
    top = 2**64 - 1
    async with listening(client) as call:
        assert cache.watches[0] == m.KvWatch("gw", False)
        await cache.publish(
            batch(5, stored([11, top], range(8), parent=9), removed(3, 4), m.KvEvent("cleared"), worker="gpu-a"),
            batch(6, stored([1], range(4))),
        )
        first, second = await next_of(call), await next_of(call)
    assert (first.worker, first.incarnation, first.seq, first.block_size, first.kind) == ("gpu-a", 7, 5, PAGE, 0)
    kinds = [event.WhichOneof("event") for event in first.events]
    assert kinds == ["block_stored", "block_removed", "all_blocks_cleared"]
    block = first.events[0].block_stored
    assert (list(block.block_hashes), block.parent_block_hash, list(block.token_ids), block.block_size) == (
        [11, top], 9, list(range(8)), PAGE,
    )  # fmt: skip
    assert list(first.events[1].block_removed.block_hashes) == [3, 4]
    assert not second.events[0].block_stored.HasField("parent_block_hash")


async def test_a_snapshot_first_then_changes_and_a_filter(shared: World, cache: FakeCache, client: Client) -> None:
    async with listening(client, snapshot=True) as all_of_it, listening(client, snapshot=True, workers=["b"]) as b:
        await shared.until(lambda: any(watch.snapshot for watch in cache.watches))
        await cache.publish(
            batch(3, stored([1]), worker="a", snapshot=1),
            batch(3, stored([2]), worker="a", snapshot=2),
            batch(9, stored([1]), worker="b", snapshot=1),
            batch(4, removed(2), worker="a"),
            batch(10, removed(1), worker="b"),
        )
        got = [await next_of(all_of_it) for _ in range(5)]
        assert [(one.worker, one.seq, one.kind) for one in got] == [
            ("a", 3, 1), ("a", 3, 2), ("b", 9, 1), ("a", 4, 0), ("b", 10, 0),
        ]  # fmt: skip
        assert [(one.worker, one.kind) for one in (await next_of(b), await next_of(b))] == [("b", 1), ("b", 0)]


async def test_a_gap_makes_the_gateway_ask_for_a_snapshot(shared: World, cache: FakeCache, client: Client) -> None:
    async with listening(client, snapshot=True) as call:
        await shared.until(lambda: any(watch.snapshot for watch in cache.watches))
        await cache.publish(batch(3, snapshot=1), batch(4))
        assert [(await next_of(call)).seq for _ in range(2)] == [3, 4]
        cache.watches.clear()
        await cache.publish(batch(6))
        await shared.until(lambda: any(watch.snapshot for watch in cache.watches))
        await cache.publish(batch(6, snapshot=1), batch(7))
        assert [((one := await next_of(call)).seq, one.kind) for _ in range(2)] == [(6, 1), (7, 0)]


async def test_nothing_is_listened_to_while_nobody_reads(shared: World, cache: FakeCache, client: Client) -> None:
    async with listening(client):
        pass
    await shared.until(lambda: shared.gateway.kv.readers == 0)
    with anyio.fail_after(5):
        while True:
            try:
                await cache.scheduler.node.call(Role.GATEWAY, KV, m.Probe(), m.ProbeReply, timeout=0.05)
            except NoResponders:
                break
            except TimedOut:
                continue


async def test_events_of_strangers_and_broken_ones_do_not_reach_clients(
    shared: World, cache: FakeCache, client: Client
) -> None:
    async with listening(client) as call:
        node = shared.gateway.backends.presence.node
        before = node.refused.get("malformed", 0)
        await cache.publish(batch(1, m.KvEvent("stored", b"123")), batch(2))
        assert (await next_of(call)).seq == 2
        assert node.refused["malformed"] == before + 1


async def test_the_watch_is_renewed_while_somebody_reads(
    shared: World, cache: FakeCache, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "WATCH_S", 0.05)
    async with listening(client):
        await shared.until(lambda: len(cache.watches) > 5)
    await shared.until(lambda: shared.gateway.kv.readers == 0)


async def test_a_slow_reader_is_ended_and_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream.KvStream.__init__, "__kwdefaults__", {"snapshot": False, "max_bytes": 1_000_000})
    async with world(CONFIG) as made:
        cache = FakeCache.attach(made.backend.scheduler)
        client = await Client.connect(made.service.grpc_port or 0)
        async with listening(client) as slow, listening(client) as quick:
            big = stored(range(20_000), [])
            for seq in range(1, 1000):
                await cache.publish(batch(seq, big))
                assert (await next_of(quick)).seq == seq
                if made.gateway.kv.readers == 1:
                    break
            error = await ends_with(slow)
            assert (error.code(), trailing(error)["retry-after"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1")
            assert "snapshot" in (error.details() or "")
            await cache.publish(batch(seq + 1))
            assert (await next_of(quick)).seq == seq + 1
        await client.close()


async def test_streams_are_few(
    shared: World, cache: FakeCache, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "MAX_STREAMS", 2)
    async with listening(client), listening(client):
        error = await ends_with(client.method("KvEvents")(client.message("KvEventsRequest")))
        assert (error.code(), trailing(error)["retry-after"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1")
    await shared.until(lambda: shared.gateway.kv.readers == 0)
    async with listening(client):
        pass
    for names in (["w"] * 257, ["w" * 65]):
        error = await ends_with(client.method("KvEvents")(client.message("KvEventsRequest", workers=names)))
        assert (error.code(), trailing(error)["phloem-error-param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "workers")


async def test_a_scheduler_that_does_not_answer_or_refuses_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "OPEN_S", 0.3)
    monkeypatch.setattr(kv_events, "LAPSE_S", 0.5)
    monkeypatch.setattr(kv_events, "WATCH_S", 0.1)
    monkeypatch.setattr(kv_events, "RETRY_S", 0.1)
    async with world(CONFIG) as made:
        cache = FakeCache.attach(made.backend.scheduler)
        client = await Client.connect(made.service.grpc_port or 0)
        async with listening(client) as call:
            cache.refuse_watch = m.ErrorInfo("unavailable", "this scheduler does not lead")
            assert (await ends_with(call)).code() == grpc.StatusCode.UNAVAILABLE
        error = await ends_with(client.method("KvEvents")(client.message("KvEventsRequest")))
        assert (error.code(), trailing(error)["retry-after"]) == (grpc.StatusCode.UNAVAILABLE, "1")
        await client.close()


async def test_another_leader_is_asked_for_a_snapshot() -> None:
    async with world(CONFIG, schedulers=2) as made:
        first, second = (FakeCache.attach(scheduler) for scheduler in made.backend.schedulers)
        client = await Client.connect(made.service.grpc_port or 0)
        async with listening(client, snapshot=True) as call:
            await made.until(lambda: any(watch.snapshot for watch in first.watches))
            await first.publish(batch(3, snapshot=1))
            assert (await next_of(call)).seq == 3
            second.scheduler.term = 2
            second.scheduler.presence.set_state("ready")
            await made.until(lambda: any(watch.snapshot for watch in second.watches))
            await first.publish(batch(4))
            await second.publish(batch(1, incarnation=8, snapshot=1), batch(2, incarnation=8))
            assert [((one := await next_of(call)).incarnation, one.seq) for _ in range(2)] == [(8, 1), (8, 2)]
        await client.close()


async def test_a_drain_ends_the_streams() -> None:
    async with world(CONFIG) as made:
        FakeCache.attach(made.backend.scheduler)
        client = await Client.connect(made.service.grpc_port or 0)
        async with listening(client) as call:
            made.context.drain.set()
            error = await ends_with(call)
            assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "The server is shutting down.")
        await client.close()


@pytest.mark.parametrize(("setting", "ids"), [("text", [1, 2, 3, 4]), ("shape", []), ("off", None)])
async def test_what_blocks_say_is_shown_as_far_as_the_tree_is(
    tmp_path: Path, setting: str, ids: list[int] | None
) -> None:
    async with world(GatewayConfig(http_port=None, grpc_port=0, radix=setting)) as made:
        cache = FakeCache.attach(made.backend.scheduler)
        client = await Client.connect(made.service.grpc_port or 0)
        if ids is None:
            error = await ends_with(client.method("KvEvents")(client.message("KvEventsRequest")))
            assert (error.code(), cache.watches) == (grpc.StatusCode.NOT_FOUND, [])
        else:
            async with listening(client) as call:
                await cache.publish(batch(1, stored([5], [1, 2, 3, 4])))
                block = (await next_of(call)).events[0].block_stored
                assert (list(block.block_hashes), list(block.token_ids)) == ([5], ids)
        await client.close()
