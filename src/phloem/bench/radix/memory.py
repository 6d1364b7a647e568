"""How many bytes the tree keeps for a cached token, and how many the queue adds for a choice that waits."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass

from phloem_scheduler.node import TOKEN_BYTES

from .bed import Bed
from .prompts import Prompts


@dataclass(frozen=True, slots=True)
class Memory:
    """As Python's allocator counts them. Tokens are counted once, however many prompts share them."""

    nodes: int
    cached_tokens: int
    tree_bytes: int
    """Nodes, keys, page ids, and the order of eviction."""
    choices: int
    waiting_tokens: int
    """Of their own: prompt tokens in nodes that no worker has."""
    waiting_bytes: int
    """Nodes, keys and places in the order; the requests themselves are not counted."""

    @property
    def per_cached_token(self) -> float:
        return self.tree_bytes / self.cached_tokens

    @property
    def per_node(self) -> float:
        return self.tree_bytes / self.nodes

    @property
    def per_waiting_token(self) -> float:
        return self.waiting_bytes / self.waiting_tokens

    @property
    def per_choice(self) -> float:
        return self.waiting_bytes / self.choices


def measure(prompts: Prompts, count: int, page_size: int) -> Memory:
    """Cache ``count`` prompts, let as many choices wait, and look at what that takes."""
    bed = Bed(page_size)
    choices = [bed.choice(prompts.draw()) for _ in range(count)]
    cached = [prompts.draw() for _ in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        for prompt in cached:
            bed.store(prompt)
        tree_bytes = tracemalloc.get_traced_memory()[0]
        nodes, cached_tokens = bed.tree.size, bed.tree.pages * page_size
        for choice in choices:
            bed.queue.add(choice)
        waiting_bytes = tracemalloc.get_traced_memory()[0] - tree_bytes
    finally:
        tracemalloc.stop()
    wanted = sum(len(node.key) for node in bed.tree.nodes() if not node.copies) // TOKEN_BYTES
    return Memory(nodes, cached_tokens, tree_bytes, count, wanted, waiting_bytes)
