"""A gateway service on a `LocalBus` with fake neighbours, and ways to talk to it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from prometheus_client import CollectorRegistry

from phloem_bus.service import ServiceContext
from phloem_gateway.config import GatewayConfig
from phloem_gateway.service import GatewayService
from phloem_proto.subjects import Role

from .backend import MODEL, Backend, FakeScheduler, FakeTokenizer


async def inline(work: Callable[[], Any]) -> Any:
    return work()


@dataclass(slots=True)
class World:
    """One gateway and what is around it."""

    service: GatewayService
    backend: Backend
    context: ServiceContext
    readiness: list[bool]

    @property
    def gateway(self) -> Any:
        return self.service.gateway

    def client(self, **options: Any) -> httpx.AsyncClient:
        """An HTTP client that calls the application directly."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.service.app), base_url="http://gateway", **options)

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(path, json=body, **options)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait for ``condition``; fails after ``timeout_s``."""
        with anyio.fail_after(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for is the state of fakes, which have no events
                await anyio.sleep(0.005)


@asynccontextmanager
async def world(
    config: GatewayConfig | None = None,
    *,
    tokenizers: int = 1,
    schedulers: int = 1,
    drain_s: float = 5.0,
    wait: bool = True,
) -> AsyncIterator[World]:
    """Start everything; by default wait until the gateway is ready. No ports unless ``config`` says so."""
    config = config or GatewayConfig(http_port=None, grpc_port=None)
    backend = Backend()
    backend.tokenizers = [FakeTokenizer(backend.broker, f"tok{i}") for i in range(tokenizers)]
    backend.schedulers = [
        FakeScheduler(backend.broker, backend.tokenizers, f"sched{i}", int(i == 0)) for i in range(schedulers)
    ]
    readiness: list[bool] = []
    context = ServiceContext(
        backend.broker.connect("gw"), Role.GATEWAY, "gw", 99, "test", MODEL, random.Random(3), inline, anyio.Event(),
        drain_s=drain_s, registry=CollectorRegistry(), ready=readiness.append,
    )  # fmt: skip
    service = GatewayService(config)
    made = World(service, backend, context, readiness)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run, context)
        for tokenizer in backend.tokenizers:
            await tasks.start(tokenizer.run)
        for scheduler in backend.schedulers:
            await tasks.start(scheduler.run)
        await service.listening.wait()
        if wait:
            await made.until(lambda: service.gateway.backends.trouble() is None)
            await made.until(lambda: all("gw" in one.to for one in backend.tokenizers))
        yield made
        tasks.cancel_scope.cancel()


def events(text: str) -> list[Any]:
    """The JSON objects of a stream of server-sent events; the last must be [DONE], which is left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@dataclass(slots=True)
class Caller:
    """A client on plain ASGI that can leave, read slowly or send its body in pieces."""

    app: Any
    sent: list[dict[str, Any]] = field(default_factory=list)
    gone: anyio.Event = field(default_factory=anyio.Event)
    reads: anyio.Event | None = None
    """While set to an event, body messages are not taken until it fires."""

    async def call(
        self, path: str, body: bytes = b"", headers: dict[str, str] | None = None, method: str = "POST"
    ) -> None:
        """Make one call; returns when the application is done with it."""
        head = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path, "raw_path": path.encode(),
            "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"},
            "headers": [(k.encode(), v.encode()) for k, v in head.items()], "extensions": {},
        }  # fmt: skip
        pending = [body]

        async def receive() -> dict[str, Any]:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if self.reads is not None and message["type"] == "http.response.body":
                await self.reads.wait()
            self.sent.append(message)

        await self.app(scope, receive, send)

    @property
    def status(self) -> int | None:
        return next((x["status"] for x in self.sent if x["type"] == "http.response.start"), None)

    @property
    def text(self) -> str:
        return b"".join(x.get("body", b"") for x in self.sent).decode()
