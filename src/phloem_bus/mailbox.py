"""The bounded buffer behind every subscription, whatever carries the messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from .bus import RawMessage

MAX_BYTES = 64 * 1024 * 1024
"""Bytes one subscription may hold: eight messages of the largest size, far above what a live consumer leaves lying."""


class Mailbox:
    """A `Subscription`: `put` never blocks, and drops (and counts) the newest when full.

    Args:
        capacity: most messages held.
        on_close: called once when the consumer closes it.
    """

    def __init__(self, capacity: int, on_close: Callable[[], None] = lambda: None) -> None:
        self._items: deque[RawMessage] = deque()
        self._capacity = capacity
        self._bytes = 0
        self._on_close = on_close
        self._arrived: anyio.Event | None = None
        self.closed = False
        self.dropped = 0

    def put(self, message: RawMessage) -> bool:
        """Keep ``message`` for the consumer; False when it was dropped."""
        if self.closed:
            return False
        if len(self._items) >= self._capacity or (self._items and self._bytes + len(message.data) > MAX_BYTES):
            self.dropped += 1
            return False
        self._items.append(message)
        self._bytes += len(message.data)
        self._wake()
        return True

    def receive_nowait(self) -> RawMessage:
        """The next message. Raises ``anyio.WouldBlock``, or ``anyio.EndOfStream`` once closed and empty."""
        if self._items:
            message = self._items.popleft()
            self._bytes -= len(message.data)
            return message
        if self.closed:
            raise anyio.EndOfStream
        raise anyio.WouldBlock

    async def receive(self) -> RawMessage:
        """The next message; a cancelled wait loses none. Raises ``anyio.EndOfStream`` once closed and empty."""
        if self._items or self.closed:
            await checkpoint()
        while not (self._items or self.closed):
            if self._arrived is None:
                self._arrived = anyio.Event()
            await self._arrived.wait()
        return self.receive_nowait()

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> RawMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def end(self, *, discard: bool = False) -> None:
        """No more will come. ``discard`` also forgets what is held (a connection that was killed)."""
        self.closed = True
        if discard:
            self._items.clear()
            self._bytes = 0
        self._wake()

    async def aclose(self) -> None:
        if not self.closed:
            self._on_close()
            self.end()
        await checkpoint()

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None
