"""`LocalBus`: the bus inside one process, in pure anyio. It promises what NATS promises and no more.

Under a `Faults` object it also delays, drops and reorders, from a seed. Order per publisher and subscription always holds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.lowlevel import checkpoint

from .bus import RawMessage
from .errors import Disconnected, NoResponders, PayloadTooLarge, TimedOut
from .faults import Faults
from .mailbox import Mailbox
from .patterns import check_subject, matches

MAX_PAYLOAD = 8 * 1024 * 1024
"""As in our nats-server configuration, so that what fits here fits there."""
_ROUTES = 4096
"""Subjects whose subscribers are remembered: far more than live instances; the memory is emptied when they exceed it."""


class _Entry:
    """One subscription as the broker sees it."""

    def __init__(self, bus: LocalBus, pattern: tuple[str, ...], queue: str | None, mailbox: Mailbox) -> None:
        self.bus = bus
        self.pattern = pattern
        self.queue = queue
        self.mailbox = mailbox


class LocalBroker:
    """Joins the `LocalBus`es of one process.

    Args:
        max_payload: most bytes of a message.
        seed: for the choice among members of a queue group.
        faults: delays and drops; its `Faults.run` must run beside the services.
    """

    def __init__(self, *, max_payload: int = MAX_PAYLOAD, seed: int = 0, faults: Faults | None = None) -> None:
        self.max_payload = max_payload
        self.faults = faults
        self.up = True
        self._rng = random.Random(seed)
        self._buses: list[LocalBus] = []
        self._exact: dict[str, list[_Entry]] = {}
        self._patterns: list[_Entry] = []
        self._routes: dict[str, list[_Entry]] = {}
        self._inboxes: dict[str, _Entry] = {}
        self._next_inbox = 0

    def connect(self, name: str = "") -> LocalBus:
        """A new connection. ``name`` is what `Faults.partition` knows it by."""
        bus = LocalBus(self, name)
        self._buses.append(bus)
        return bus

    def stop(self) -> None:
        """Go down: every connection is lost, and with it what is under way. Subscriptions come back with `start`."""
        self.up = False
        if self.faults is not None:
            self.faults.lose_all()

    def start(self) -> None:
        """Come up again; connections and subscriptions are back at once."""
        self.up = True
        now = anyio.current_time()
        for bus in self._buses:
            bus.mark_connected(now)

    def add(self, entry: _Entry) -> None:
        if any(token in ("*", ">") for token in entry.pattern):
            self._patterns.append(entry)
        else:
            self._exact.setdefault(".".join(entry.pattern), []).append(entry)
        self._routes.clear()

    def remove(self, entry: _Entry) -> None:
        subject = ".".join(entry.pattern)
        if entry in self._patterns:
            self._patterns.remove(entry)
        elif entry in self._exact.get(subject, ()):
            self._exact[subject].remove(entry)
            if not self._exact[subject]:
                del self._exact[subject]
        self._routes.clear()

    def forget(self, bus: LocalBus) -> None:
        if bus in self._buses:
            self._buses.remove(bus)

    @contextmanager
    def inbox(self, bus: LocalBus) -> Iterator[tuple[str, Mailbox]]:
        """A subject and a mailbox for the one reply to a request."""
        self._next_inbox += 1
        subject = f"_INBOX.{self._next_inbox}"
        mailbox = Mailbox(1)
        self._inboxes[subject] = _Entry(bus, (subject,), None, mailbox)
        try:
            yield subject, mailbox
        finally:
            del self._inboxes[subject]

    def deliver(self, publisher: LocalBus, message: RawMessage) -> int:
        """Put ``message`` into the mailbox of each subscriber; returns how many there are (whatever the faults do to it)."""
        entries = self._receivers(message.subject)
        for entry in entries:
            if self.faults is None:
                entry.mailbox.put(message)
            else:
                self.faults.pass_on(publisher.name, entry.bus.name, entry.mailbox, message)
        return len(entries)

    def _receivers(self, subject: str) -> list[_Entry]:
        inbox = self._inboxes.get(subject)
        if inbox is not None:
            return [inbox]
        route = self._routes.get(subject)
        if route is None:
            route = self._route(subject)
        if all(entry.queue is None for entry in route):
            return route
        return self._one_per_queue(route)

    def _route(self, subject: str) -> list[_Entry]:
        tokens = tuple(subject.split("."))
        route = self._exact.get(subject, []) + [e for e in self._patterns if matches(e.pattern, tokens)]
        if len(self._routes) >= _ROUTES:
            self._routes.clear()
        self._routes[subject] = route
        return route

    def _one_per_queue(self, route: list[_Entry]) -> list[_Entry]:
        chosen = [entry for entry in route if entry.queue is None]
        groups: dict[str, list[_Entry]] = {}
        for entry in route:
            if entry.queue is not None:
                groups.setdefault(entry.queue, []).append(entry)
        return chosen + [self._rng.choice(members) for members in groups.values()]


class LocalBus:
    """A connection to a `LocalBroker`; a `Bus`."""

    def __init__(self, broker: LocalBroker, name: str = "") -> None:
        self.name = name
        self._broker = broker
        self._entries: list[_Entry] = []
        self._closed = False
        self._connected_since = anyio.current_time()

    @property
    def max_payload(self) -> int:
        return self._broker.max_payload

    @property
    def violations(self) -> int:
        return 0

    @property
    def connected(self) -> bool:
        return self._broker.up and not self._closed

    @property
    def connected_since(self) -> float:
        return self._connected_since

    def mark_connected(self, now: float) -> None:
        """Note a reconnection (the broker does)."""
        self._connected_since = now

    async def publish(self, subject: str, data: bytes, *, reply: str | None = None) -> None:
        await checkpoint()
        self._deliver(subject, data, reply)

    async def subscribe(self, subject: str, *, queue: str | None = None, capacity: int = 4096) -> Mailbox:
        await checkpoint()
        if not self.connected:
            raise Disconnected("the local bus is down")
        pattern = check_subject(subject, wildcards=True)
        mailbox = Mailbox(capacity, on_close=lambda: self._unsubscribe(entry))
        entry = _Entry(self, pattern, queue, mailbox)
        self._entries.append(entry)
        self._broker.add(entry)
        return mailbox

    async def request(self, subject: str, data: bytes, *, timeout: float) -> bytes:
        await checkpoint()
        with self._broker.inbox(self) as (inbox, mailbox), anyio.move_on_after(timeout):
            if self._deliver(subject, data, inbox) == 0:
                raise NoResponders(f"nobody listens on {subject}")
            return (await mailbox.receive()).data
        raise TimedOut(f"no reply on {subject} within {timeout:g} s")

    async def flush(self) -> None:
        await checkpoint()
        if not self.connected:
            raise Disconnected("the local bus is down")

    async def aclose(self) -> None:
        """Close; what subscriptions hold can still be read."""
        self._close(discard=False)
        await checkpoint()

    def kill(self) -> None:
        """End as a killed process does: at once, and what subscriptions hold is lost."""
        self._close(discard=True)

    def _close(self, *, discard: bool) -> None:
        self._closed = True
        for entry in self._entries:
            self._broker.remove(entry)
            entry.mailbox.end(discard=discard)
        self._entries.clear()
        self._broker.forget(self)

    def _unsubscribe(self, entry: _Entry) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
            self._broker.remove(entry)

    def _deliver(self, subject: str, data: bytes, reply: str | None) -> int:
        if not self.connected:
            raise Disconnected("the local bus is down")
        if len(data) > self.max_payload:
            raise PayloadTooLarge(len(data), self.max_payload)
        check_subject(subject, wildcards=False)
        return self._broker.deliver(self, RawMessage(subject, bytes(data), reply))
