"""Server-sent events from bytes, cut anywhere (sans-I/O). Only ``data`` fields matter to OpenAI-compatible streams."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 << 20
"""Longest unfinished event kept: a server that never ends an event must not fill our memory."""


class EventTooLong(ValueError):
    """Raised when an event is longer than `MAX_EVENT_BYTES`."""


class SseDecoder:
    """Feed bytes, get the data of each complete event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that ``data`` completes, in order; several ``data`` lines of one event are joined by newlines.

        Raises:
            EventTooLong: what is unfinished has grown beyond `MAX_EVENT_BYTES`.
        """
        buffer = self._rest + data if self._rest else data
        if b"\r" in buffer:
            buffer = buffer[:-1].replace(b"\r\n", b"\n") + buffer[-1:]
        *events, self._rest = buffer.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong("a server-sent event does not end")
        return [payload for event in events if (payload := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    """The data of one event; None if it has none (comments, keep-alives)."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
