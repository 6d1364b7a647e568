"""The KV cache of one worker: its radix tree and its page pool, kept in step.

Every page is free, held by one request, or in the tree; these functions are the only ones that move pages between the three.
"""

from __future__ import annotations

from array import array

from .pages import PagePool
from .tree import TOKEN_BYTES, Extension, Match, Namespace, Node, RadixTree


class Cache:
    """Pages `first_page` to `first_page + pages - 1`. With reuse off, nothing enters the tree and every match is empty."""

    def __init__(self, pages: int, page_size: int, first_page: int = 0, reuse: bool = True) -> None:
        self.page_size = page_size
        self.pool = PagePool(pages, first_page)
        self.tree = RadixTree(page_size)
        self.reuse = reuse

    @property
    def room(self) -> int:
        """Pages that `take` could supply now: the free ones and those it may evict."""
        return self.pool.free + self.tree.evictable_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def peek(self, namespace: Namespace, key: bytes, limit: int) -> int:
        """Whole pages of key's first `limit` tokens that the tree holds. Changes nothing."""
        return self.tree.peek(namespace, key[: limit * TOKEN_BYTES])

    def acquire(self, namespace: Namespace, key: bytes, limit: int) -> Match:
        """Lock the longest cached path of key's first `limit` tokens. Owe `release(match.node)`."""
        return self.tree.acquire(namespace, key[: limit * TOKEN_BYTES] if self.reuse else b"")

    def release(self, node: Node) -> None:
        """Undo one lock on node's path; its pages stay cached until they are evicted."""
        self.tree.release(node)

    def take(self, count: int) -> array[int] | None:
        """Give a request `count` pages, evicting only the shortfall. None, and nothing evicted, if there is no room for all of them."""
        if count > self.room:
            return None
        shortfall = count - self.pool.free
        if shortfall > 0:
            self.pool.from_tree(self.tree.evict(shortfall))
        return self.pool.take(count)

    def give_back(self, pages: array[int]) -> None:
        """A request's own pages become free."""
        self.pool.give_back(pages)

    def extend(self, node: Node, key: bytes, pages: array[int]) -> Extension:
        """Offer a request's pages to the tree, below node; see RadixTree.extend for what happens to lock and pages."""
        if not self.reuse:
            return Extension(node, len(pages))
        extension = self.tree.extend(node, key, pages)
        self.pool.to_tree(pages[extension.present :])
        return extension

    def flush(self) -> int:
        """Evict all that nobody uses; return how many pages that was."""
        pages = self.tree.evict(self.tree.evictable_pages)
        self.pool.from_tree(pages)
        return len(pages)

    def check(self) -> None:
        """Raise AssertionError if pool and tree contradict each other or themselves. Linear: for tests and for an idle service."""
        self.pool.check()
        self.tree.check()
        assert self.pool.in_tree == self.tree.total_pages
        pages = [page for node in self.tree.nodes() for page in node.pages]
        assert len(set(pages)) == len(pages), "a page is in two nodes"
