"""Clients that send too much, too slowly or nonsense before, between and after their requests; real sockets under uvloop, as in production."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest

from phloem_gateway.config import GatewayConfig
from phloem_gateway.limits import MAX_HEAD_BYTES, MAX_PIPELINED

from .backend import Script
from .world import World, world

pytestmark = pytest.mark.anyio

PATIENCE_S = 1.0
"""`head_timeout_s` of the impatient gateway."""
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def _patient() -> AsyncIterator[World]:
    async with world(GatewayConfig(http_port=0, grpc_port=None)) as made:
        yield made


@pytest.fixture(scope="module")
async def _impatient() -> AsyncIterator[World]:
    async with world(GatewayConfig(http_port=0, grpc_port=None, head_timeout_s=PATIENCE_S)) as made:
        yield made


@pytest.fixture
def patient(_patient: World) -> World:
    _patient.backend.reset()
    return _patient


@pytest.fixture
def impatient(_impatient: World) -> World:
    _impatient.backend.reset()
    return _impatient


def generate(text: str = "hi", **fields: Any) -> bytes:
    """A request whose answer `answers` can read."""
    body = json.dumps({"text": text, **fields}).encode()
    return (
        b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


async def connect(made: World) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", made.service.http_port or 0)


async def rest(stream: anyio.abc.SocketStream) -> bytes:
    """Whatever comes until the server closes."""
    got = b""
    with anyio.fail_after(10.0):
        try:
            while True:
                got += await stream.receive()
        except anyio.EndOfStream:
            return got


async def pour(stream: anyio.abc.SocketStream, piece: bytes, times: int) -> None:
    """Send ``piece`` again and again, or until the server will have no more."""
    try:
        for _ in range(times):
            await stream.send(piece)
    except anyio.BrokenResourceError:
        pass


def statuses(got: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", got)]


def last_error(got: bytes) -> str:
    """The code of the error that the connection ended with."""
    return str(json.loads(got[got.rindex(b"\r\n\r\n") + 4 :])["error"]["code"])


def padded(size: int) -> bytes:
    """A request for /live whose head has ``size`` bytes."""
    start, end = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-padding: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


# --- Size -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1000, MAX_HEAD_BYTES * 2], ids=["in pieces", "at once"])
@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD_BYTES, 200), (MAX_HEAD_BYTES + 1, 431)])
async def test_headers_may_have_64_kib(patient: World, size: int, status: int, step: int) -> None:
    head = padded(size)
    async with await connect(patient) as stream:
        for start in range(0, size, step):
            await stream.send(head[start : start + step])
        assert statuses(await rest(stream)) == [status]


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /live HTTP/1.1\r\nhost: x\r\nx-long: ", b"x" * 4096),
        (b"GET /live HTTP/1.1\r\nhost: x\r\nx-", b"x" * 4096),
        (b"GET /live HTTP/1.1\r\nhost: x\r\n", b"a:\r\n" * 1024),
        (b"GET /", b"x" * 4096),
        (b"", b"\r\n" * 2048),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx-trailer: ", b"x" * 4096),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a:\r\n" * 1024),
        (CHUNKED + b"2;extension=", b"x" * 4096),
    ],
    ids=["value", "name", "lines", "target", "blank lines", "trailer", "trailers", "chunk extension"],
)
async def test_whatever_has_no_end_is_refused_after_64_kib(patient: World, begin: bytes, more: bytes) -> None:
    async with await connect(patient) as stream:
        await stream.send(begin)
        await pour(stream, more, MAX_HEAD_BYTES // len(more) - 1)
        async with httpx.AsyncClient() as other:  # what has come so far holds nobody up
            assert (await other.get(f"http://127.0.0.1:{patient.service.http_port}/live")).status_code == 200
        await pour(stream, more, 8)
        got = await rest(stream)
    assert (statuses(got), last_error(got)) == ([431], "headers_too_large")
    assert patient.backend.tokenizer.encoded == []


async def test_refusals_are_counted(patient: World) -> None:
    async def count() -> float:
        async with patient.client() as client:
            text = (await client.get("/metrics")).text
        found = re.search(r'phloem_gateway_responses_total\{endpoint="other",status="431"\} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = await count()
    async with await connect(patient) as stream:
        await stream.send(padded(MAX_HEAD_BYTES + 1))
        assert last_error(await rest(stream)) == "headers_too_large"
    assert await count() == before + 1


async def test_a_long_body_in_tiny_chunks_is_no_header(patient: World) -> None:
    text = "x" * 300
    body = json.dumps({"text": text}).encode() + b" " * (MAX_HEAD_BYTES // 4)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-trailer: 1\r\n\r\n"
    async with await connect(patient) as stream:
        await stream.send(CHUNKED.replace(b"host: x", b"host: x\r\nconnection: close") + chunks)
        assert statuses(await rest(stream)) == [200]
    assert patient.backend.tokenizer.encoded[0].texts == (text,)


# --- Time -------------------------------------------------------------------------------------------------------------


async def trickle(stream: anyio.abc.SocketStream, piece: bytes) -> None:
    """Send ``piece`` now and then, several times within the server's patience, until the server has closed."""
    try:
        while True:
            await stream.send(piece)
            await anyio.sleep(PATIENCE_S / 8)
    except anyio.BrokenResourceError:
        pass


async def test_a_connection_on_which_nothing_comes_is_closed(impatient: World) -> None:
    async with await connect(impatient) as stream:
        assert await rest(stream) == b""


@pytest.mark.parametrize("first", [b"", LIVE], ids=["first request", "second request"])
@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"G", b""), (b"GET /live HTTP/1.1\r\nhost: x\r\n", b""), (b"GET /live?", b"x"), (b"\r\n", b"\r\n")],
    ids=["a letter", "half a head", "a slow head", "blank lines"],
)
async def test_headers_that_are_not_complete_in_time(impatient: World, first: bytes, begin: bytes, more: bytes) -> None:
    async with await connect(impatient) as stream:
        await stream.send(first + begin)
        async with anyio.create_task_group() as tasks:
            if more:
                tasks.start_soon(trickle, stream, more)
            got = await rest(stream)
            tasks.cancel_scope.cancel()
    assert statuses(got) == ([200] if first else []) + [408]
    assert last_error(got) == "request_timeout"


async def test_a_body_that_nobody_wants_does_not_keep_its_connection(impatient: World) -> None:
    async with await connect(impatient) as stream:
        await stream.send(b"GET /live HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trickle, stream, b"x")
            assert statuses(await rest(stream)) == [200]
            tasks.cancel_scope.cancel()


async def test_the_next_head_may_wait_while_an_answer_takes_long(impatient: World) -> None:
    scheduler = impatient.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    half = len(LIVE) // 2
    async with await connect(impatient) as stream:
        await stream.send(generate() + LIVE[:half])
        await impatient.until(lambda: bool(scheduler.running))
        await anyio.sleep(2 * PATIENCE_S)
        scheduler.script.hold.set()  # type: ignore[union-attr]
        got = await stream.receive()
        await stream.send(LIVE[half:].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        got += await rest(stream)
    assert statuses(got) == [200, 200]


# --- Pipelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [40, 100_000], ids=["in pieces", "at once"])
async def test_requests_sent_ahead_are_answered_in_order(patient: World, step: int) -> None:
    patient.backend.scheduler.script = Script(says=lambda order, child: f"{len(order.ids) // 4} tokens")
    sent = b"".join(generate("x" * length) for length in range(1, 21)) + padded(500)
    async with await connect(patient) as stream:
        for start in range(0, len(sent), step):
            await stream.send(sent[start : start + step])
        got = await rest(stream)
    assert statuses(got) == [200] * 21
    assert re.findall(rb"(\d+) tokens", got) == [b"%d" % length for length in range(1, 21)]


async def test_no_more_than_so_many_requests_wait_on_a_connection(patient: World) -> None:
    scheduler = patient.backend.scheduler
    scheduler.script = Script(hold=anyio.Event())
    async with await connect(patient) as stream:
        await stream.send(generate() + LIVE * (MAX_PIPELINED + 1))
        await patient.until(lambda: bool(scheduler.running))
        scheduler.script.hold.set()  # type: ignore[union-attr]
        got = await rest(stream)
    assert statuses(got) == [200] * (MAX_PIPELINED + 2) + [429]
    assert last_error(got) == "rate_limit_exceeded"


# --- Nonsense ---------------------------------------------------------------------------------------------------------

BROKEN_CHUNK = b"2\r\n{}\r\nnonsense\r\n"


@pytest.mark.parametrize("stream_it", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("behind", "then"),
    [
        (b"NONSENSE\r\n\r\n", [400]),
        (b"\x00\xff\x00\xff" * 1000, [400]),
        (LIVE + b"NONSENSE\r\n\r\n", [200, 400]),
        (LIVE + CHUNKED + BROKEN_CHUNK, [200, 400]),
        (CHUNKED + BROKEN_CHUNK, [400]),
        (padded(MAX_HEAD_BYTES + 1), [431]),
    ],
    ids=["a line", "bytes", "behind a second", "third body", "second body", "long head"],
)
async def test_nonsense_behind_a_request_is_refused_after_its_answer(
    patient: World, behind: bytes, then: list[int], stream_it: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scheduler = patient.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    async with await connect(patient) as stream:
        await stream.send(generate(stream=stream_it))
        await patient.until(lambda: any(x.completion_tokens == 4 for x in patient.gateway.core.live.values()))
        await stream.send(behind)
        if len(behind) < MAX_HEAD_BYTES:
            await patient.until(lambda: "Invalid HTTP request" in caplog.text)
        scheduler.script.hold.set()  # type: ignore[union-attr]
        got = await rest(stream)
    assert statuses(got) == [200, *then]
    assert (b"data: [DONE]" if stream_it else b"Hello world") in got
    assert last_error(got) == {400: "invalid_request", 431: "headers_too_large"}[then[-1]]
    assert errors(caplog) == []


@pytest.mark.parametrize("whose", ["first", "second"])
async def test_a_body_that_turns_to_nonsense_is_refused_at_once(
    patient: World, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await connect(patient) as stream:
        if whose == "second":
            await stream.send(LIVE)
        await stream.send(CHUNKED + BROKEN_CHUNK)
        got = await rest(stream)
    assert statuses(got) == [200] * (whose == "second") + [400]
    assert (errors(caplog), patient.backend.tokenizer.encoded) == ([], [])


def reset(stream: anyio.abc.SocketStream) -> None:
    """Let closing break the connection."""
    sock = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("leave", [None, reset], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "behind",
    [b"", LIVE, LIVE * 3, b"NONSENSE\r\n\r\n", LIVE[:9]],
    ids=["nothing", "a request", "three", "nonsense", "half a request"],
)
async def test_a_client_that_leaves_is_gone_whatever_it_sent_ahead(
    patient: World, behind: bytes, leave: Callable[[Any], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = patient.backend.scheduler
    scheduler.script = Script(says=lambda order, child: "x" * 400, step=1, gap_s=0.01)
    async with await connect(patient) as stream:
        await stream.send(generate(stream=True, sampling_params={"max_new_tokens": 400}) + behind)
        await patient.until(lambda: bool(scheduler.running))
        await stream.receive()
        if leave is not None:
            leave(stream)
    await patient.until(lambda: not scheduler.running)
    assert [len(scheduler.cancelled), patient.gateway.core.live, errors(caplog)] == [1, {}, []]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_server_that_is_cancelled_lets_its_loop_close() -> None:
    async def main() -> None:
        async with world(GatewayConfig(http_port=0, grpc_port=None)) as made, await connect(made) as stream:
            await stream.send(LIVE)
            assert statuses(await stream.receive()) == [200]

    loop = partial(anyio.run, main, backend_options={"use_uvloop": True})
    with anyio.fail_after(20.0):
        await anyio.to_thread.run_sync(loop, abandon_on_cancel=True)
