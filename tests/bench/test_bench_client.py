"""The client against a fake server: what it sends, what it notes, and that every kind of trouble gets its name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import pytest

from phloem.bench.http1 import Client
from phloem.bench.load import Run
from phloem.bench.openai_api import Api, perform
from phloem.bench.record import Record
from phloem.bench.schemas import SCHEMAS
from phloem.bench.sse import MAX_EVENT_BYTES, EventTooLong, SseDecoder
from phloem.bench.workload import Item

from .conftest import FakeServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def one(url: str, api: Api, item: Item | None = None) -> Record:
    client, record = Client(url), Record(0)
    await perform(client, api, item or Item("hello there", 6, system="be brief"), record, anyio.current_time)
    await client.aclose()
    return record


async def test_streamed_chat_is_timed_and_counted(fake: FakeServer) -> None:
    record = await one(fake.url + "/v1/", Api("ok"))
    assert record.ok, record.detail
    assert record.first_s is not None
    assert record.last_s is not None
    assert record.start_s < record.first_s < record.last_s <= record.end_s
    assert len(record.gaps_s) == 5
    assert sum(record.gaps_s) == pytest.approx(record.last_s - record.first_s)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens, record.counted) == (18, 9, 6, True)
    assert record.finish_reason == "length"
    body = fake.seen("ok")[-1]
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (6, 0.0, True)


async def test_completions_without_stream(fake: FakeServer) -> None:
    record = await one(fake.url, Api("plain", chat=False, stream=False, extra={"top_k": 3, "temperature": 1}))
    assert record.ok, record.detail
    assert (record.first_s, record.gaps_s, record.output_tokens) == (None, [], 6)
    body = fake.seen("plain")[-1]
    assert body["prompt"] == "be brief\n\nhello there"
    assert "stream" not in body
    assert (body["top_k"], body["temperature"]) == (3, 1)


async def test_without_usage_pieces_are_counted(fake: FakeServer) -> None:
    record = await one(fake.url, Api("no-usage"))
    assert (record.ok, record.output_tokens, record.counted) == (True, 6, False)


async def test_schemas_are_sent_and_the_answer_kept(fake: FakeServer) -> None:
    record = await one(fake.url, Api("follows"), Item("Invent a person", 200, schema=SCHEMAS["person"]))
    assert record.ok, record.detail
    assert record.text == '{"name":"Ann","age":3,"email":"a@b","member":true}'
    body = fake.seen("follows")[-1]
    assert body["response_format"]["json_schema"]["schema"] == SCHEMAS["person"]
    assert "ignore_eos" not in body


@pytest.mark.parametrize(
    ("model", "failure"),
    [
        ("overloaded", "http_429"),
        ("garbage", "bad_reply"),
        ("breaks", "disconnected"),
        ("no-done", "disconnected"),
        ("closes", "disconnected"),
        ("errs", "stream_error"),
    ],
)
async def test_trouble_has_a_name(fake: FakeServer, model: str, failure: str) -> None:
    record = await one(fake.url, Api(model))
    assert record.failure == failure
    assert record.detail


async def test_a_late_reply_is_a_timeout_and_the_connection_is_dropped(fake: FakeServer) -> None:
    client, record = Client(fake.url), Record(0)
    await perform(client, Api("hangs", timeout_s=0.2), Item("x", 1), record, anyio.current_time)
    assert record.failure == "timeout"
    assert record.end_s - record.start_s >= 0.2
    assert await in_time(fake.hanging)
    assert await in_time(fake.hung_up)
    await perform(client, Api("ok"), Item("x", 1), again := Record(1), anyio.current_time)
    assert again.ok
    await client.aclose()


async def in_time(event: threading.Semaphore) -> bool:
    """Take one of what the fake server counts."""
    return await anyio.to_thread.run_sync(lambda: event.acquire(timeout=10))


async def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        record = await one(f"http://127.0.0.1:{free.getsockname()[1]}", Api("ok"))
    assert record.failure == "connect"


@contextmanager
def raw_server(*replies: bytes) -> Iterator[str]:
    """Accepts connections one after the other; sends each one reply, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


async def test_bytes_that_are_no_http() -> None:
    with raw_server(b"SSH-2.0-OpenSSH_9.6\r\n") as url:
        assert (await one(url, Api("ok"))).failure == "bad_reply"


async def test_a_reply_that_ends_with_its_connection() -> None:
    reply = b'HTTP/1.1 200 OK\r\n\r\n{"choices": [{"text": "hi", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
    with raw_server(reply) as url:
        record = await one(url, Api("ok", chat=False, stream=False))
    assert (record.ok, record.output_tokens) == (True, 1)


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    with raw_server(reply, reply) as url:
        client = Client(url)
        for _ in range(2):  # the server closes after each reply without having said so
            async with client.request("GET", "/") as response:
                assert await response.read() == b"{}"
        await client.aclose()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
async def test_urls_are_checked(url: str) -> None:
    with pytest.raises(ValueError, match=r"not an http\(s\) URL"):
        Client(url)


async def test_closed_loop_keeps_its_number_in_flight(fake: FakeServer) -> None:
    fake.most_at_once = 0
    client = Client(fake.url)
    done: list[Record] = []
    run = Run(client, Api("ok"), [Item("x", 8) for _ in range(12)], concurrency=3, on_done=done.append)
    generator = await run.run()
    await client.aclose()
    assert [record.index for record in run.records] == list(range(12))
    assert all(record.ok for record in run.records)
    assert fake.most_at_once == 3
    assert len(done) == 12
    assert generator.send_p99_ms == 0.0
    assert generator.cpu_share > 0


async def test_open_loop_sends_at_the_given_times(fake: FakeServer) -> None:
    client = Client(fake.url)
    items = [Item("x", 1, at_s=at) for at in (0.0, 0.1, 0.3)]
    run = Run(client, Api("ok"), items, concurrency=100)
    await run.run()
    await client.aclose()
    assert all(record.start_s >= (record.planned_s or 0.0) for record in run.records)
    assert run.records[2].start_s - run.records[0].start_s >= 0.29


async def test_a_cancelled_run_hangs_up(fake: FakeServer) -> None:
    client = Client(fake.url)
    run = Run(client, Api("hangs"), [Item("x", 8) for _ in range(100)], concurrency=4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.run)
        for _ in range(4):
            assert await in_time(fake.hanging)
        tasks.cancel_scope.cancel()
    await client.aclose()
    for _ in range(4):
        assert await in_time(fake.hung_up)


def test_events_are_found_however_they_are_cut() -> None:
    stream = b": ping\r\n\r\ndata: one\n\nevent: x\ndata: two\r\ndata:three\r\n\r\nid: 7\n\ndata: \xc3\xa4\n\n"
    expected = [b"one", b"two\nthree", "ä".encode()]
    for size in range(1, len(stream) + 1):
        decoder = SseDecoder()
        assert [
            event for at in range(0, len(stream), size) for event in decoder.feed(stream[at : at + size])
        ] == expected
    with pytest.raises(EventTooLong):
        SseDecoder().feed(b"x" * (MAX_EVENT_BYTES + 1))
