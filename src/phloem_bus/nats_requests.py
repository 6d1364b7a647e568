"""Requests over NATS: one wildcard inbox per connection, one waiter per request.

nats-py has this, too; ours keeps the inbox private to us, outlives the client it was made on, and leaves nothing behind when cancelled.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
from nats.aio.msg import Msg

from .errors import NoResponders, TimedOut


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its reply.

    Attributes:
        inbox: the subject that the reply is to go to.
    """

    inbox: str
    arrived: anyio.Event = field(default_factory=anyio.Event)
    message: Msg | None = None

    def result(self, subject: str, timeout: float) -> bytes:
        """The reply's bytes.

        Raises:
            TimedOut: there is none yet.
            NoResponders: the server said that nobody listens.
        """
        if self.message is None:
            raise TimedOut(f"no reply on {subject} within {timeout:g} s")
        # A request without responders is answered by the server itself: no data, and a status in place of headers.
        if not self.message.data and (self.message.headers or {}).get("Status") == "503":
            raise NoResponders(f"nobody listens on {subject}")
        return self.message.data


class Requests:
    """The requests of one `NatsBus` that are waiting.

    Args:
        prefix: of the inbox; private to a role and instance. Random digits make it private to this process.
    """

    def __init__(self, prefix: str) -> None:
        self._inbox = f"{prefix}.{secrets.token_hex(8)}"
        self._waiting: dict[str, Waiter] = {}

    @property
    def pattern(self) -> str:
        """To be subscribed on every new client, with `on_reply`."""
        return f"{self._inbox}.*"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """A waiter with an inbox of its own, forgotten at the end. Who has seen one of them can't tell the next."""
        token = secrets.token_hex(8)
        waiter = self._waiting[token] = Waiter(f"{self._inbox}.{token}")
        try:
            yield waiter
        finally:
            del self._waiting[token]

    async def on_reply(self, message: Msg) -> None:
        """Hand a message to its waiter; one that comes too late, or twice, goes nowhere."""
        waiter = self._waiting.get(message.subject.rpartition(".")[2])
        if waiter is not None and waiter.message is None:
            waiter.message = message
            waiter.arrived.set()
