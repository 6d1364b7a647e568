"""Real sockets: uvicorn on a free port, the official client, connections that break, bodies that are too large."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.abc
import httpx
import openai
import pytest

from phloem_bus.errors import ConfigError
from phloem_gateway.config import GatewayConfig

from .backend import MODEL, Script
from .world import World, world

pytestmark = pytest.mark.anyio

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
async def _served() -> AsyncIterator[World]:
    async with world(GatewayConfig(http_port=0, grpc_port=None, max_body_bytes=1_000_000, byte_budget=5_000)) as made:
        yield made


@pytest.fixture
def served(_served: World) -> World:
    _served.backend.reset()
    return _served


def url(made: World) -> str:
    return f"http://127.0.0.1:{made.service.http_port}"


async def raw(made: World, path: str, body: bytes, *, length: int | None = None) -> anyio.abc.SocketStream:
    """A connection on which a request has been written."""
    stream = await anyio.connect_tcp("127.0.0.1", made.service.http_port or 0)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    await stream.send(head.encode() + body)
    return stream


async def test_the_official_client(served: World) -> None:
    async with openai.AsyncOpenAI(base_url=url(served) + "/v1", api_key="none", max_retries=0) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert chat.choices[0].message.content == "Hello world"
        assert chat.usage is not None
        assert chat.usage.prompt_tokens_details is not None
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        text, usage = "", None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert (text, usage.completion_tokens if usage else 0) == ("Hello world", 11)
        completion = await client.completions.create(
            model=MODEL, prompt=["a", "b"], max_tokens=5, extra_body={"top_k": 5}
        )
        assert [choice.text for choice in completion.choices] == ["Hello", "Hello"]
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
        assert (raised.value.param, raised.value.code) == ("temperature", "invalid_value")


async def test_sixteen_at_once(served: World) -> None:
    served.backend.scheduler.script = Script(says=lambda order, child: f"seed {order.seed}", gap_s=0.002, step=1)
    answers: dict[int, str] = {}
    async with (
        openai.AsyncOpenAI(base_url=url(served) + "/v1", api_key="none") as client,
        anyio.create_task_group() as tasks,
    ):

        async def one(seed: int) -> None:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=seed, stream=True)
            answers[seed] = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        for seed in range(16):
            tasks.start_soon(one, seed)
    assert answers == {seed: f"seed {seed}" for seed in range(16)}


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_the_connection_cancels(served: World, stream: bool) -> None:
    scheduler = served.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": stream, "n": 2}).encode()
    connection = await raw(served, "/v1/chat/completions", body)
    await served.until(lambda: any(live.completion_tokens == 8 for live in served.gateway.core.live.values()))
    await connection.aclose()
    await served.until(lambda: not scheduler.running, timeout_s=2.0)
    assert served.gateway.core.live == {}


async def test_a_client_that_stops_reading_is_cut_and_its_connection_broken(served: World) -> None:
    scheduler = served.backend.scheduler
    scheduler.script = Script(says=lambda order, child: "x" * 480, step=1, gap_s=0.005)
    body = json.dumps(
        {"model": MODEL, "prompt": "hi", "max_tokens": 480, "stream": True, "logprobs": 20, "n": 24}
    ).encode()
    with socket.create_connection(("127.0.0.1", served.service.http_port or 0)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        await served.until(lambda: bool(scheduler.running))
        scheduler.script = Script()
        async with httpx.AsyncClient(base_url=url(served), timeout=30.0) as client:
            other = await client.post("/v1/completions", json={"model": MODEL, "prompt": "hi"})
        assert other.status_code == 200
        await served.until(lambda: not scheduler.running and not served.gateway.core.live, timeout_s=30.0)


async def test_a_large_body_gets_its_413_without_being_read_whole(served: World) -> None:
    async with httpx.AsyncClient(base_url=url(served)) as client:
        response = await client.post(
            "/generate", content=b"x" * 3_000_000, headers={"content-type": "application/json"}
        )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    connection = await raw(served, "/generate", b"{", length=10**12)
    with anyio.fail_after(2.0):
        assert b" 413 " in (await connection.receive()).partition(b"\r\n")[0]
    await connection.aclose()


async def test_a_broken_request_line_is_a_400(served: World) -> None:
    stream = await anyio.connect_tcp("127.0.0.1", served.service.http_port or 0)
    await stream.send(b"NONSENSE\r\n\r\n")
    with anyio.fail_after(2.0):
        assert b" 400 " in await stream.receive()
    await stream.aclose()


@pytest.mark.parametrize("edge", ["http", "grpc"])
async def test_a_port_in_use_is_told_by_its_setting(served: World, edge: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = GatewayConfig(http_port=port if edge == "http" else 0, grpc_port=port if edge == "grpc" else None)
        with pytest.raises((ConfigError, ExceptionGroup)) as raised:
            async with world(config, wait=False):
                pass
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigError)
    assert (error.setting, "in use" in error.message) == (f"--{edge}-port", True)


async def test_drain_lets_a_stream_finish_and_closes_the_port() -> None:
    async with world(GatewayConfig(http_port=0, grpc_port=0)) as made:
        made.backend.scheduler.script = Script(hold=anyio.Event(), hold_after=4)
        body = {"model": MODEL, "messages": MESSAGES, "stream": True}
        async with (
            httpx.AsyncClient(base_url=url(made)) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            await made.until(lambda: any(x.completion_tokens == 4 for x in made.gateway.core.live.values()))
            made.context.drain.set()
            await made.until(lambda: made.gateway.backends.draining)
            made.backend.scheduler.script.hold.set()  # type: ignore[union-attr]
            assert (await response.aread()).endswith(b"data: [DONE]\n\n")

        with anyio.fail_after(5.0):
            while await reachable(made):  # noqa: ASYNC110 - the port has no event
                await anyio.sleep(0.02)


async def reachable(made: World) -> bool:
    """Whether the HTTP port takes connections."""
    try:
        stream = await anyio.connect_tcp("127.0.0.1", made.service.http_port or 0)
    except OSError:
        return False
    await stream.aclose()
    return True
