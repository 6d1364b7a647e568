"""Eviction that does not know who waits: what the scheduler's own is compared with."""

from __future__ import annotations

from phloem_scheduler.node import Copy, Node, Outgoing
from phloem_scheduler.shelf import Shelf
from phloem_scheduler.worker import WorkerState


class PlainShelf(Shelf):
    """Every copy goes in the order that the eviction gives, whether somebody waits for it or not."""

    def _place(self, node: Node, copy: Copy) -> Outgoing:
        return (0, *self._value(copy), node.order, node)


def forget_demand(worker: WorkerState, eviction: str) -> None:
    """Make worker, which has just joined, evict so."""
    assert not worker.cache.shelf.copies
    worker.cache.shelf = PlainShelf(worker.instance, eviction)
