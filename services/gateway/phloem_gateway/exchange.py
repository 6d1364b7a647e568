"""One HTTP exchange: its body in, its reply or event stream out, on plain ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from .decode import to_json
from .errors import ApiError

ABORT = "phloem.abort"
"""Key among the ASGI extensions under which our HTTP server offers to break a connection."""
DRAIN_S = 2.0
"""After a 413 the rest of the body is read and thrown away for at most this long, so that the client gets to see the answer."""


class ClientGone(Exception):
    """Raised when the client closed its connection before its request was whole."""


class Exchange:
    """What a handler works with. ``request_id`` and ``owner`` are set by `http_app` before the handler runs."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.request_id: str = scope["state"]["request_id"]
        self.owner: str = scope["state"]["owner"]
        self.started = False
        self.streaming = False
        self.whole = False
        """The request body has been read to its end."""
        self.complete = False
        """The last byte of the reply has been handed over."""
        self._receive = receive
        self._send = send

    # --- In ---------------------------------------------------------------------------------------------------------

    async def body(self, limit: int, timeout_s: float) -> bytes:
        """The JSON body.

        Raises:
            ApiError: not JSON (415), longer than ``limit`` bytes (413, before it is read), too slow (408).
            ClientGone: the client left.
        """
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError("unsupported_media_type", "The Content-Type must be application/json.")
        told = self.headers.get("content-length", "")
        if told.isdigit() and int(told) > limit:
            raise too_large(limit)
        chunks: list[bytes] = []
        size = 0
        with anyio.move_on_after(timeout_s):
            while not self.whole:
                chunk = await self._chunk()
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
            return b"".join(chunks)
        raise ApiError("request_timeout", "The request body did not arrive in time.")

    async def _chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.whole = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def while_connected(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``, and cancel it at once when the client closes its connection.

        Raises:
            ClientGone: it did.
            Exception: whatever ``work`` raises.
        """
        failure: Exception | None = None
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self.complete:
                gone = True
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                await work()
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if gone:
            raise ClientGone

    def abort(self) -> None:
        """Break the connection without waiting for what the client has not read."""
        breaks = self.scope.get("extensions", {}).get(ABORT)
        if breaks is not None:
            breaks["call"]()

    # --- Out --------------------------------------------------------------------------------------------------------

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The whole reply."""
        await self.reply(to_json(value), "application/json", status, headers)

    async def reply(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole reply, as bytes."""
        self.started = True
        head = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        head += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        self.complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def error(self, error: ApiError) -> None:
        """The error as a reply, or, on a stream, as its last event."""
        if self.streaming:
            await self.event(error.body())
            await self.done()
            return
        headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        if error.code not in ("request_too_large", "request_timeout") or self.whole:
            await self.json(error.body(), error.status, headers)
            return
        await self._error_before_body(error)

    async def _error_before_body(self, error: ApiError) -> None:
        """Answer first, then throw away what still comes for a moment: closing at once would reset the answer away."""
        self.started = True
        body = to_json(error.body())
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._send({"type": "http.response.start", "status": error.status, "headers": head})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        with anyio.move_on_after(DRAIN_S):
            try:
                while not self.whole:
                    await self._chunk()
            except ClientGone:
                return
        self.complete = True
        await self._send({"type": "http.response.body", "body": b""})

    async def start_events(self) -> None:
        """Begin a stream of server-sent events."""
        self.started = self.streaming = True
        head = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def event(self, *values: Any) -> None:
        """One event per value, in one write."""
        if values:
            data = b"".join(b"data: " + to_json(value) + b"\n\n" for value in values)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def comment(self) -> None:
        """A line that clients ignore, so that nobody takes the silence for death."""
        await self._send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})

    async def done(self) -> None:
        """End a stream."""
        self.complete = True
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def too_large(limit: int) -> ApiError:
    """The body is over the limit."""
    return ApiError("request_too_large", f"The request body is larger than this server's limit of {limit} bytes.")
