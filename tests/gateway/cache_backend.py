"""The cache side of a fake scheduler: leases, the tree, and events, as a test sets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from phloem_bus.node import Received
from phloem_proto import messages as m
from phloem_proto.codec import pack_ids
from phloem_proto.subjects import KV, Role

from .backend import FakeScheduler

PAGE = 4


@dataclass(slots=True)
class FakeCache:
    """Answers for ``scheduler``. Make it with `attach`, once per scheduler."""

    scheduler: FakeScheduler
    pins: dict[tuple[str, str], m.PinInfo] = field(default_factory=dict)
    asked: list[m.Pin | m.Unpin] = field(default_factory=list)
    kept: list[int | None] = field(default_factory=list)
    """Tokens that the next new leases keep (None: nothing is left); then all whole pages."""
    refuse: m.ErrorInfo | None = None
    hold: anyio.Event | None = None
    """Until it is set, leases are made, but nobody is told."""
    radix: m.RadixReply = field(default_factory=lambda: m.RadixReply(page_size=PAGE))
    looked: list[m.Radix] = field(default_factory=list)
    watches: list[m.KvWatch] = field(default_factory=list)
    refuse_watch: m.ErrorInfo | None = None

    @classmethod
    def attach(cls, scheduler: FakeScheduler) -> FakeCache:
        cache = cls(scheduler)
        node = scheduler.node
        node.serve(m.Pin, cache._pin, limit=16, busy=lambda _: m.PinReply())
        node.serve(m.Unpin, cache._unpin, limit=16, busy=lambda _: m.PinReply())
        node.serve(m.Pins, cache._pins, limit=16, busy=lambda _: m.PinsReply())
        node.serve(m.Radix, cache._radix, limit=16, busy=lambda _: m.RadixReply())
        node.serve(m.KvWatch, cache._watch, limit=16, busy=lambda _: m.KvWatchReply())
        return cache

    def reset(self) -> None:
        """Forget what was seen and set."""
        self.pins.clear()
        for seen in (self.asked, self.kept, self.looked, self.watches):
            seen.clear()
        self.refuse = self.refuse_watch = self.hold = None
        self.radix = m.RadixReply(page_size=PAGE)

    async def _pin(self, received: Received[m.Pin]) -> m.PinReply:
        wanted = received.message
        self.asked.append(wanted)
        if self.refuse is not None:
            return m.PinReply(error=self.refuse)
        known = self.pins.get((wanted.owner, wanted.pin))
        if known is None and not wanted.ids:
            return m.PinReply(error=m.ErrorInfo("not_found", "no such pin", "pin"))
        tokens: int | None = len(wanted.ids) // 4 // PAGE * PAGE
        if known is not None and not wanted.replace:
            tokens = known.tokens
        elif self.kept:
            tokens = self.kept.pop(0)
        if tokens is None:
            return m.PinReply(m.PinInfo(wanted.pin, 0, "worker0", 0))
        info = m.PinInfo(wanted.pin, tokens, "worker0", wanted.ttl_ms)
        self.pins[wanted.owner, wanted.pin] = info
        if self.hold is not None:
            await self.hold.wait()
        return m.PinReply(info)

    async def _unpin(self, received: Received[m.Unpin]) -> m.PinReply:
        wanted = received.message
        self.asked.append(wanted)
        info = self.pins.pop((wanted.owner, wanted.pin), None)
        return m.PinReply(info, None if info else m.ErrorInfo("not_found", "no such pin"))

    async def _pins(self, received: Received[m.Pins]) -> m.PinsReply:
        return m.PinsReply(tuple(info for (owner, _), info in self.pins.items() if owner == received.message.owner))

    async def _radix(self, received: Received[m.Radix]) -> m.RadixReply:
        self.looked.append(received.message)
        return self.radix

    async def _watch(self, received: Received[m.KvWatch]) -> m.KvWatchReply:
        self.watches.append(received.message)
        return m.KvWatchReply(10_000, self.refuse_watch)

    async def publish(self, *batches: m.KvEvents) -> None:
        """Tell all gateways that listen."""
        for batch in batches:
            await self.scheduler.node.send(Role.GATEWAY, KV, batch)


def node(parent: int, text: str, **fields: Any) -> m.RadixNode:
    """A node whose edge is ``text``; ``depth`` is its own unless given."""
    ids = list(text.encode())
    return m.RadixNode(
        parent,
        fields.pop("tokens", len(ids)),
        fields.pop("depth", len(ids)),
        fields.pop("wanted", 0),
        pack_ids(ids),
        **fields,
    )


def worker(instance: str, placed: int = 0, prompt: int = 0, cached: int = 0) -> m.RadixWorker:
    """A worker of 100 pages."""
    return m.RadixWorker(instance, 100, 60, 10, 30, 5, 2, placed, prompt, cached)


def hashes(*values: int) -> bytes:
    """Block hashes as they travel."""
    return b"".join(value.to_bytes(8, "little") for value in values)


def stored(values: Sequence[int], ids: Sequence[int] = (), parent: int = 0) -> m.KvEvent:
    return m.KvEvent("stored", hashes(*values), parent, pack_ids(list(ids)))


def removed(*values: int) -> m.KvEvent:
    return m.KvEvent("removed", hashes(*values))


def batch(seq: int, *events: m.KvEvent, worker: str = "w", incarnation: int = 7, snapshot: int = 0) -> m.KvEvents:
    return m.KvEvents(worker, incarnation, seq, PAGE, events, snapshot)
