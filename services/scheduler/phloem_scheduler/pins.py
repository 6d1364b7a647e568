"""Leases on prefixes: a path stays resident on the worker that has most of it, until its time is over or its owner goes.

Leases never stop the service: they may take only a share of a worker's pages, and when a request could not run at all while they
last, the oldest ends early.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from phloem_proto.messages import ErrorInfo, Pin, PinInfo, PinReply, PinsReply

from .node import TOKEN_BYTES, Node
from .worker import WorkerState

# What one owner may have: a handful of system prompts and documents.
MOST_PER_OWNER = 32
# All together: each holds a lock and a timer.
MOST_PINS = 4096
LONGEST_TTL_MS = 3_600_000


@dataclass(slots=True)
class Lease:
    """One pinned path."""

    owner: str
    pin: str
    gateway: str
    worker: WorkerState
    node: Node
    tokens: int
    until: float

    def info(self, now: float) -> PinInfo:
        """As its owner sees it."""
        return PinInfo(self.pin, self.tokens, self.worker.instance, max(0, round((self.until - now) * 1000)))


class Pins:
    """All leases, oldest first.

    Args:
        share: of a worker's pages, at most so much may be leased.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.yielded = 0  # ended early, because a request could not have run
        self._leases: dict[tuple[str, str], Lease] = {}
        self._next_end = math.inf  # no lease's time is over before

    def __len__(self) -> int:
        return len(self._leases)

    def open(self, message: Pin, workers: Iterable[WorkerState], now: float) -> PinReply:
        """Grant a lease, renew one, or move it to another prefix."""
        if (problem := malformed(message)) is not None:
            return PinReply(error=problem)
        self.expire(now)
        lease = self._leases.get((message.owner, message.pin))
        if lease is not None and not message.replace:
            lease.until = now + message.ttl_ms / 1000
            lease.gateway = message.gateway
            self._next_end = min(self._next_end, lease.until)
            return PinReply(lease.info(now))
        if not message.ids:
            return PinReply(error=ErrorInfo("not_found", "no such pin", param="pin"))
        if lease is None and (full := self._full(message.owner)) is not None:
            return PinReply(error=full)
        return self._grant(message, lease, list(workers), now)

    def _full(self, owner: str) -> ErrorInfo | None:
        mine = sum(lease.owner == owner for lease in self._leases.values())
        if mine >= MOST_PER_OWNER:
            return ErrorInfo(
                "busy", f"there are {mine} pins; at most {MOST_PER_OWNER} may be held", retry_after_ms=1000
            )
        if len(self._leases) >= MOST_PINS:
            return ErrorInfo("busy", "too many prefixes are pinned", retry_after_ms=1000)
        return None

    def _grant(self, message: Pin, former: Lease | None, workers: list[WorkerState], now: float) -> PinReply:
        """On the worker that has most of it. One that has nothing of it can't keep it. former ends only if that can be."""
        namespace = (message.salt, message.extra)
        best = max(workers, key=lambda worker: worker.cache.peek(namespace, message.ids), default=None)
        if best is None:
            return PinReply(error=ErrorInfo("unavailable", "no worker is ready", retry_after_ms=1000))
        cache = best.cache
        if not cache.reuse:
            return PinReply(error=ErrorInfo("invalid_request", "this server keeps no prefixes"))
        node = cache.tree.pin(cache.shelf, namespace, message.ids)
        if node is None:
            return PinReply(PinInfo(message.pin, 0, best.instance, 0))
        most = int(self.share * cache.pool.total)
        given_back = pages_alone(former) if former is not None and former.worker is best else 0
        if cache.shelf.pinned_pages - given_back > most:
            cache.tree.unpin(cache.shelf, node)
            text = f"at most {most * cache.page_size} tokens may be pinned"
            return PinReply(error=ErrorInfo("busy", text, retry_after_ms=1000))
        if former is not None:
            self._end(former)
        until = now + message.ttl_ms / 1000
        self._next_end = min(self._next_end, until)
        lease = Lease(message.owner, message.pin, message.gateway, best, node, node.depth * cache.page_size, until)
        self._leases[message.owner, message.pin] = lease
        return PinReply(lease.info(now))

    def close(self, owner: str, pin: str, now: float) -> PinReply:
        """End a lease."""
        self.expire(now)
        lease = self._leases.get((owner, pin))
        if lease is None:
            return PinReply(error=ErrorInfo("not_found", "no such pin", param="pin"))
        self._end(lease)
        return PinReply(lease.info(now))

    def of(self, owner: str, now: float) -> PinsReply:
        """The leases of owner."""
        self.expire(now)
        return PinsReply(tuple(lease.info(now) for lease in self._leases.values() if lease.owner == owner))

    def expire(self, now: float) -> None:
        """End those whose time is over."""
        if now >= self._next_end:
            self._end_all([lease for lease in self._leases.values() if lease.until <= now])
            self._next_end = min((lease.until for lease in self._leases.values()), default=math.inf)

    def gateway_gone(self, instance: str) -> None:
        """Nobody speaks for these owners any more."""
        self._end_all([lease for lease in self._leases.values() if lease.gateway == instance])

    def worker_gone(self, worker: WorkerState) -> None:
        """What was pinned there is lost."""
        self._end_all([lease for lease in self._leases.values() if lease.worker is worker])

    def relieve(self, worker: WorkerState) -> bool:
        """A request needs pages that only leases hold: end the oldest on worker. False if there is none."""
        lease = next((lease for lease in self._leases.values() if lease.worker is worker), None)
        if lease is None:
            return False
        self.yielded += 1
        self._end(lease)
        return True

    def _end_all(self, leases: list[Lease]) -> None:
        for lease in leases:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.owner, lease.pin]
        lease.worker.cache.tree.unpin(lease.worker.cache.shelf, lease.node)


def pages_alone(lease: Lease) -> int:
    """Pages of lease's path that no other lease holds, a new one on the same worker included."""
    shelf, step, pages = lease.worker.cache.shelf, lease.node, 0
    while step.parent is not None and step.copies[shelf].pins == 1:
        pages += len(step.copies[shelf].pages)
        step = step.parent
    return pages


def malformed(message: Pin) -> ErrorInfo | None:
    """The field of message that no well-behaved gateway would send so."""
    if not message.pin:
        return ErrorInfo("invalid_request", "pin: must not be empty", param="pin")
    if not 0 < message.ttl_ms <= LONGEST_TTL_MS:
        return ErrorInfo("invalid_request", f"ttl_ms: must be between 1 and {LONGEST_TTL_MS}", param="ttl_ms")
    if len(message.ids) % TOKEN_BYTES:
        return ErrorInfo("invalid_request", "ids: must be uint32 token ids", param="ids")
    return None
