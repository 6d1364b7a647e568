"""The ASGI application: routes, request ids, keys, errors, one log line per call. anyio only, so that a simulation can call it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import ANYONE, Keys
from .checks import is_request_id
from .decode import to_json
from .errors import ApiError, internal
from .exchange import ClientGone, Exchange
from .gateway import Gateway
from .http_cache import Cache
from .http_native import Native
from .http_openai import OpenAI
from .serving import SlowClient

Handler = Callable[[Exchange], Awaitable[None]]

OPEN_PATHS = ("/health", "/live")
"""Served without a key."""
_log = logging.getLogger("phloem.gateway.http")


def build(gateway: Gateway, keys: Keys, rng: random.Random, cors_origins: Sequence[str] = ()) -> ASGIApp:
    """The application.

    Args:
        rng: draws request ids.
        cors_origins: who may call from a browser; none = nobody.
    """
    openai, native, cache, ops = OpenAI(gateway), Native(gateway), Cache(gateway), Operations(gateway)
    table: list[tuple[str, list[str], Handler]] = [
        ("/v1/chat/completions", ["POST"], openai.chat),
        ("/v1/completions", ["POST"], openai.completion),
        ("/v1/models", ["GET"], openai.models),
        ("/v1/models/{name:path}", ["GET"], openai.model),
        ("/generate", ["POST", "PUT"], native.generate),
        ("/tokenize", ["POST"], native.tokenize),
        ("/detokenize", ["POST"], native.detokenize),
        ("/flush_cache", ["GET", "POST"], native.flush_cache),
        ("/radix", ["GET"], cache.radix),
        ("/pins", ["GET", "POST"], cache.pins),
        ("/pins/{id:path}", ["POST", "DELETE"], cache.pin),
        ("/health", ["GET"], ops.health),
        ("/live", ["GET"], ops.live),
        ("/metrics", ["GET"], ops.metrics),
    ]
    routes = [Route(path, Endpoint(handler), methods=methods, name=path) for path, methods, handler in table]
    app: ASGIApp = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method})
    app = Guard(app, routes, keys, gateway)
    if cors_origins:
        app = CORSMiddleware(
            app, allow_origins=list(cors_origins), allow_methods=["GET", "POST", "PUT", "DELETE"], allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )  # fmt: skip
    return RequestIds(app, rng)


class Operations:
    """Health and metrics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, exchange: Exchange) -> None:
        """``GET /health``: 200 when a request could be served now, else 503 with the reason."""
        trouble = self._gateway.backends.trouble()
        if trouble is None:
            await exchange.json({"status": "ready", "model": self._gateway.backends.model})
            return
        status = "draining" if self._gateway.backends.draining else "not_ready"
        await exchange.json({"status": status, "reason": trouble}, 503, {"retry-after": "1"})

    async def live(self, exchange: Exchange) -> None:
        """``GET /live``: the process answers."""
        await exchange.json({"status": "live"})

    async def metrics(self, exchange: Exchange) -> None:
        """``GET /metrics``: Prometheus text."""
        body = generate_latest(self._gateway.metrics.registry)
        await exchange.reply(body, "text/plain; version=0.0.4; charset=utf-8")


class Endpoint:
    """A handler as an ASGI app: errors become replies, and nothing of an unexpected one is shown."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._handler(exchange)
        except ClientGone:
            scope["state"]["outcome"] = "client gone"
        except SlowClient:
            scope["state"]["outcome"] = "slow client cut"
            exchange.abort()
        except ApiError as error:
            await self._fail(exchange, error)
        except Exception:
            _log.exception("unexpected error", extra={"request_id": exchange.request_id})
            await self._fail(exchange, internal())

    @staticmethod
    async def _fail(exchange: Exchange, error: ApiError) -> None:
        if exchange.complete:
            return
        exchange.scope["state"]["outcome"] = error.code
        if exchange.started and not exchange.streaming:
            exchange.abort()
            return
        with anyio.move_on_after(5.0):  # a client that does not read must not hold an error either
            await exchange.error(error)
        if not exchange.complete:
            exchange.abort()


class Guard:
    """Keys, metrics and the log line of each call."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route], keys: Keys, gateway: Gateway) -> None:
        self._app = app
        self._routes = routes
        self._keys = keys
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        state = scope["state"]
        state |= {"owner": ANYONE, "outcome": "", "status": 0}

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
            await send(message)

        begun = time.perf_counter()
        try:
            await self._admit(scope, receive, watch)
        finally:
            self._gateway.metrics.responses.labels(self._endpoint(scope), str(state["status"])).inc()
            _log.info(
                "%s %s %d %s%.1f ms", scope["method"], scope["path"], state["status"],
                f"({state['outcome']}) " if state["outcome"] else "", 1000 * (time.perf_counter() - begun),
                extra={"request_id": state["request_id"]},
            )  # fmt: skip

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:
            try:
                scope["state"]["owner"] = self._keys.owner(Headers(scope=scope).get("authorization"))
            except ApiError as error:
                await Exchange(scope, receive, send).error(error)
                return
        await self._app(scope, receive, send)

    def _endpoint(self, scope: Scope) -> str:
        """The route's pattern: a path that clients make up must not become a label."""
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"


class RequestIds:
    """Takes the client's ``x-request-id`` when it is sane, draws one otherwise, and returns it."""

    def __init__(self, app: ASGIApp, rng: random.Random) -> None:
        self._app = app
        self._rng = rng

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = Headers(scope=scope).get("x-request-id", "")
        ident = given if is_request_id(given) else f"req-{self._rng.randbytes(12).hex()}"
        scope["state"] = {**scope.get("state", {}), "request_id": ident}

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = ident
            await send(message)

        await self._app(scope, receive, tell)


async def _not_found(request: Request, error: Exception) -> Response:
    return _refusal(ApiError("not_found", "There is nothing at this path."))


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = _refusal(ApiError("method_not_allowed", "This path does not take this method."))
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def _refusal(error: ApiError) -> Response:
    return Response(to_json(error.body()), error.status, media_type="application/json")
