"""As much HTTP/2 as it takes to make one gRPC call by hand, and to see the frames that come back."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import anyio
import anyio.abc

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
ACK, END_STREAM, END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def headers(**fields: str) -> bytes:
    """A header block of literals; ``_`` at the front of a name stands for ``:``."""
    block = b""
    for name, value in fields.items():
        shown = name.replace("_", ":" if name.startswith("_") else "-", 1).encode()
        block += b"\x00" + bytes([len(shown)]) + shown + bytes([len(value)]) + value.encode()
    return block


@dataclass(slots=True)
class Connection:
    """A connection to a gRPC server. ``answers``: how many pings it answers before it seems dead to the server; None = all."""

    stream: anyio.abc.SocketStream
    answers: int | None = None
    pings: int = 0
    kinds: list[int] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)

    async def call(self, path: str, message: bytes) -> None:
        """Start a call with one request message."""
        block = headers(
            _method="POST", _scheme="http", _path=path, _authority="x", te="trailers", content_type="application/grpc"
        )
        await self.stream.send(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0)
            + frame(HEADERS, END_HEADERS, 1, block)
            + frame(DATA, END_STREAM, 1, struct.pack("!BI", 0, len(message)) + message)
        )

    async def read(self) -> None:
        """Take frames until the server closes."""
        buffer = b""
        try:
            while True:
                buffer += await self.stream.receive()
                while len(buffer) >= 9 and len(buffer) >= 9 + (size := int.from_bytes(buffer[:3], "big")):
                    await self._take(buffer[3], buffer[4], buffer[9 : 9 + size])
                    buffer = buffer[9 + size :]
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.closed.set()

    async def _take(self, kind: int, flags: int, payload: bytes) -> None:
        self.kinds.append(kind)
        if kind == SETTINGS and not flags & ACK:
            await self.stream.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.pings += 1
            if self.answers is None or self.pings <= self.answers:
                await self.stream.send(frame(PING, ACK, 0, payload))
