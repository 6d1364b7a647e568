"""The textbook's longest-prefix-match order: at each pass, match every waiting request against the tree anew and sort the whole queue.

Matching uses the same tree as ours, by comparing slices, so what is compared is the way of keeping order, not the tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from phloem_scheduler.node import TOKEN_BYTES
from phloem_scheduler.requests import Choice
from phloem_scheduler.shelf import Shelf
from phloem_scheduler.tree import RadixTree


def in_order(tree: RadixTree, shelf: Shelf, waiting: Iterable[Choice]) -> list[Choice]:
    """Highest priority first, then the longest match on shelf, then who came first."""
    unit = tree.page_size * TOKEN_BYTES
    keyed = []
    for choice in waiting:
        request = choice.request
        key = request.ids[: (len(request.ids) - TOKEN_BYTES) // unit * unit]
        matched = tree.find(request.namespace, key, shelf)[1]
        keyed.append((-request.priority, -matched, request.arrival, request.number, choice))
    keyed.sort()
    return [entry[-1] for entry in keyed]
