"""The `Bus` protocol: exactly what NATS promises, nothing more.

At most once; first in, first out per publisher and subscription; nothing across subscriptions. A broker restart loses what was in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol


class RawMessage(NamedTuple):
    """A message as it arrives: where, what, and where a reply may go."""

    subject: str
    data: bytes
    reply: str | None


class Subscription(Protocol):
    """An open subscription. Iterate it; close it when done. Its buffer is bounded: on overflow the newest is dropped and counted."""

    @property
    def dropped(self) -> int:
        """How many messages this subscription has dropped so far."""
        ...

    def __aiter__(self) -> AsyncIterator[RawMessage]: ...

    async def receive(self) -> RawMessage:
        """The next message. Raises ``anyio.EndOfStream`` once closed and empty."""
        ...

    def receive_nowait(self) -> RawMessage:
        """The next message if one is here. Raises ``anyio.WouldBlock``, or ``anyio.EndOfStream`` once closed and empty."""
        ...

    async def aclose(self) -> None: ...


class Bus(Protocol):
    """A connection to the bus."""

    @property
    def max_payload(self) -> int:
        """Most bytes of one message, as the broker says."""
        ...

    @property
    def connected(self) -> bool: ...

    @property
    def connected_since(self) -> float:
        """Clock time (`anyio.current_time`) of the last (re)connection."""
        ...

    @property
    def violations(self) -> int:
        """How often the broker said that we may not: a subject that is not for our user."""
        ...

    async def publish(self, subject: str, data: bytes, *, reply: str | None = None) -> None:
        """Send, at most once.

        Raises:
            Disconnected: there is no connection (nothing is buffered for later).
            PayloadTooLarge: ``data`` exceeds `max_payload`.
        """
        ...

    async def subscribe(self, subject: str, *, queue: str | None = None, capacity: int = 4096) -> Subscription:
        """Receive what is published on ``subject`` (``*`` and ``>`` as in NATS); with ``queue`` each message goes to one member.

        Returns once the broker has the subscription: what is published after that is received.
        """
        ...

    async def request(self, subject: str, data: bytes, *, timeout: float) -> bytes:
        """Send and wait for one reply, ``timeout`` in seconds.

        Raises:
            NoResponders: nobody listens there.
            TimedOut: no reply in time.
            Disconnected, PayloadTooLarge: as `publish`.
        """
        ...

    async def flush(self) -> None:
        """Return once the broker has everything that was published. Raises `Disconnected`."""
        ...

    async def aclose(self) -> None: ...
