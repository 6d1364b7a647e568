"""What the service and a fork server say to each other: length-prefixed MessagePack over pipes."""

from __future__ import annotations

import msgspec

from .engine import Outcome, Task, TokenizerSource

FRAME_MAX = 16 * 1024 * 1024
"""Bytes of one frame: far above the largest source, so that a garbled length is noticed."""
PREFIX = 4
"""Bytes of the length, big-endian."""


class JobLimits(msgspec.Struct, frozen=True):
    """What one job may use above what its process had when it began."""

    cpu_s: float = 2.0
    memory_bytes: int = 512 * 1024 * 1024
    wall_s: float = 30.0
    """Long, for CPU time is what counts: a job at idle priority may wait for the CPU most of the time."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """First frame to a fork server: what to load."""

    engine: str
    """``module:class``, see `engine.load`."""
    tokenizer: TokenizerSource
    limits: JobLimits
    priority: str
    """``idle`` | ``nice`` | ``normal``."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The fork server's first frame: loaded, or why not."""

    error: str = ""


class Job(msgspec.Struct, frozen=True, tag=True):
    """One task for a child of its own."""

    id: int
    task: Task


class Done(msgspec.Struct, frozen=True, tag=True):
    """A job's outcome."""

    id: int
    outcome: Outcome


to_server: msgspec.msgpack.Decoder[Setup | Job] = msgspec.msgpack.Decoder(Setup | Job)
to_client: msgspec.msgpack.Decoder[Ready | Done] = msgspec.msgpack.Decoder(Ready | Done)
outcome: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)
_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    """One frame. Raises ``ValueError`` for one above `FRAME_MAX`."""
    body = _encoder.encode(message)
    if len(body) > FRAME_MAX:
        raise ValueError(f"frame of {len(body)} bytes")
    return len(body).to_bytes(PREFIX, "big") + body


class Frames:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies completed by ``data``. Raises ``ValueError`` for a length above `FRAME_MAX`."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= PREFIX:
            size = int.from_bytes(self._buffer[:PREFIX], "big")
            if size > FRAME_MAX:
                raise ValueError(f"frame of {size} bytes")
            if len(self._buffer) < PREFIX + size:
                break
            bodies.append(bytes(self._buffer[PREFIX : PREFIX + size]))
            del self._buffer[: PREFIX + size]
        return bodies
