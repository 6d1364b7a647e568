"""What happened in a run, in order: readable, and comparable between runs."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from phloem_bus.bus import RawMessage

KEPT = 200_000
"""Latest entries that are kept for reading; all are in the digest."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened. ``at`` is simulated seconds since the start."""

    at: float
    who: str
    what: str | RawMessage

    @property
    def key(self) -> tuple[float, str, str]:
        """What is equal in equal runs: messages may carry times measured on this machine."""
        return self.at, self.who, self.what if isinstance(self.what, str) else self.what.subject

    def __str__(self) -> str:
        what = self.what if isinstance(self.what, str) else f"-> {self.what.subject}: {summary(self.what.data)}"
        return f"{self.at:9.4f}  {self.who:<13} {what}"


class Trace:
    """Collects entries; `digest` is equal for equal runs."""

    def __init__(self, keep: bool = True) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.messages = 0
        self._keep = keep
        self._hash = hashlib.sha256()
        self._start = anyio.current_time()

    def note(self, who: str, what: str) -> None:
        """Write down that ``who`` did ``what``."""
        at = anyio.current_time() - self._start
        self._hash.update(f"{at:.9f} {who} {what}\n".encode())
        if self._keep:
            self.entries.append(Entry(at, who, what))

    def message(self, sender: str, message: RawMessage, receivers: int) -> None:
        """Write down a message."""
        self.messages += 1
        at = anyio.current_time() - self._start
        self._hash.update(f"{at:.9f} {sender} {message.subject} {receivers}\n".encode())
        if self._keep:
            self.entries.append(Entry(at, sender, message))

    @property
    def digest(self) -> str:
        """64 hex digits."""
        return self._hash.hexdigest()


def summary(data: bytes) -> str:
    """A message in a few words; that of a link frame includes what it carries."""
    try:
        _, _, message = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError):
        return f"{len(data)} bytes that are no message"
    return _short(message)


def _short(message: Any) -> str:
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        return repr(message)[:60]
    return f"{message[0]}({', '.join(_value(value) for value in message[1:8])})"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        body = _carried(value)
        return body if body is not None else (value[:4].hex() + ("…" if len(value) > 4 else ""))
    if isinstance(value, list):
        return f"[{len(value)}]" if len(value) > 2 else "[" + ", ".join(_value(each) for each in value) + "]"
    text = repr(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _carried(value: bytes) -> str | None:
    """The message inside a link frame's body."""
    try:
        message = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, ValueError):
        return None
    return _short(message) if isinstance(message, list) and message and isinstance(message[0], str) else None
