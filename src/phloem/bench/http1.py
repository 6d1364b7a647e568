"""A small HTTP/1.1 client for load generation: anyio sockets, the C parser of `httptools`, kept-alive connections.

The bench shares a machine with the server it measures: each streamed token costs it some 40 us of CPU this way, a quarter of what a general
client takes. It does what a bench needs and no more: no redirects, no proxies, no compression, no cookies.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import httptools
from anyio.abc import ByteStream

CONNECT_S = 10.0
"""Longest wait for a connection."""
RECEIVE_BYTES = 65536
"""Read at once: far more than one streamed token, so that a burst costs one read."""
MAX_BODY_BYTES = 64 << 20
"""Longest reply read by `Response.read`."""


class ConnectFailed(OSError):
    """Raised when no connection to the server could be made in time."""


class Disconnected(OSError):
    """Raised when the server closed the connection before the reply was complete."""


class BadResponse(ValueError):
    """Raised when the server's bytes are no HTTP/1.1 reply, or too many."""


@dataclass(slots=True)
class _Reply:
    """What the parser has told so far; `httptools` calls the ``on_`` methods."""

    headers: dict[str, str] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    head_done: bool = False
    done: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_done = True

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.done = True

    @property
    def ends_with_connection(self) -> bool:
        """The reply has neither a length nor chunks: it ends when the server closes."""
        return self.head_done and "content-length" not in self.headers and "transfer-encoding" not in self.headers


class Response:
    """One reply. Read its body with `receive` or `read` before its request context ends, or the connection is dropped."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._reply = _Reply()
        self._parser = httptools.HttpResponseParser(self._reply)
        self.started = False
        """Whether a byte of the reply has arrived."""

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; of repeated headers the last."""
        return self._reply.headers

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._reply.done and not self._reply.ends_with_connection and bool(self._parser.should_keep_alive())

    async def head(self) -> None:
        """Wait for the status and the headers. Raises `Disconnected`, `BadResponse`."""
        while not self._reply.head_done:
            await self._feed()

    async def receive(self) -> bytes:
        """The next piece of the body, b"" at its end. Raises `Disconnected`, `BadResponse`."""
        while not self._reply.body:
            if self._reply.done:
                return b""
            await self._feed()
        data = b"".join(self._reply.body)
        self._reply.body.clear()
        return data

    async def read(self) -> bytes:
        """The whole body. Raises `Disconnected`, `BadResponse` (also over `MAX_BODY_BYTES`)."""
        parts, size = [], 0
        while data := await self.receive():
            parts.append(data)
            size += len(data)
            if size > MAX_BODY_BYTES:
                raise BadResponse("the reply is too long")
        return b"".join(parts)

    async def _feed(self) -> None:
        try:
            data = await self._stream.receive(RECEIVE_BYTES)
        except anyio.EndOfStream:
            if not self._reply.ends_with_connection:
                raise Disconnected("the server closed the connection") from None
            self._reply.done = True
            return
        except (anyio.BrokenResourceError, OSError) as error:
            raise Disconnected("the connection broke") from error
        self.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(f"not an HTTP reply: {error}") from error


class Client:
    """Connections to one server, kept alive and used again.

    Args:
        url: ``http(s)://host[:port][/base]``; a trailing ``/v1`` is taken off, so that either form of an OpenAI base URL works.
        headers: sent with each request.

    Raises:
        ValueError: not an http(s) URL with a host.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http(s) URL: {url!r}")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._idle: list[ByteStream] = []  # bounded by the caller: one per request that ran at once
        lines = {
            "host": parts.netloc.rpartition("@")[2],
            "accept": "*/*",
            "user-agent": "phloem-bench",
            **(headers or {}),
        }
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Response]:
        """Send a request; the context gives the reply once its headers are here and returns the connection at its end.

        A kept connection that the server closed meanwhile is replaced once, if no byte of a reply came.

        Raises:
            ConnectFailed, Disconnected, BadResponse
        """
        stream, response = await self._exchange(method, path, body)
        try:
            yield response
        finally:
            if response.reusable:
                self._idle.append(stream)
            else:
                await anyio.aclose_forcefully(stream)

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[ByteStream, Response]:
        reused = bool(self._idle)
        stream = self._idle.pop() if reused else await self._connect()
        response = Response(stream)
        try:
            await self._send(stream, method, path, body)
            await response.head()
        except BaseException as error:
            await anyio.aclose_forcefully(stream)
            if isinstance(error, Disconnected) and reused and not response.started:
                await self.aclose()  # the others are as old
                return await self._exchange(method, path, body)
            raise
        return stream, response

    async def _connect(self) -> ByteStream:
        try:
            with anyio.fail_after(CONNECT_S):
                if self._tls is None:
                    return await anyio.connect_tcp(self.host, self.port)
                return await anyio.connect_tcp(
                    self.host, self.port, ssl_context=self._tls, tls_standard_compatible=False
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"cannot connect to {self.host}:{self.port}: {error or 'no answer'}") from error

    async def _send(self, stream: ByteStream, method: str, path: str, body: bytes) -> None:
        kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body or method == "POST" else ""
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._head}{kind}\r\n"
        try:
            await stream.send(head.encode("latin-1") + body)
        except (anyio.BrokenResourceError, OSError) as error:
            raise Disconnected("the connection broke") from error

    async def aclose(self) -> None:
        """Close what is kept alive."""
        while self._idle:
            await anyio.aclose_forcefully(self._idle.pop())
