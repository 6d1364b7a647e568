"""Random operations on the cache against a plain dictionary of prefixes, every invariant after every operation."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

import pytest

from phloem_proto.codec import pack_ids
from phloem_scheduler.cache import Cache
from phloem_scheduler.tree import Node

Prefix = tuple[int, ...]


@dataclass
class User:
    """A request's view: its tokens, its lock, the pages of its tokens, and which of them it owns itself."""

    namespace: tuple[str, str]
    ids: Prefix
    node: Node
    pages: array[int]
    cached: int  # tokens of ids whose pages are in the tree
    own: array[int]


class Model:
    """The cache under test beside the oracle: for each namespace the page of every whole-page prefix that must be cached."""

    def __init__(self, seed: int, page_size: int, pages: int) -> None:
        self.rng = random.Random(seed)
        self.cache = Cache(pages, page_size)
        self.page_size = page_size
        self.users: list[User] = []
        self.oracle: dict[tuple[tuple[str, str], Prefix], int] = {}

    def longest(self, namespace: tuple[str, str], ids: Prefix) -> int:
        size, length = self.page_size, 0
        while length + size <= len(ids) and (namespace, ids[: length + size]) in self.oracle:
            length += size
        return length

    def draw(self) -> tuple[tuple[str, str], Prefix]:
        length = self.rng.randrange(1, 6 * self.page_size)
        namespace = ("s", "") if self.rng.random() < 0.2 else ("", "")
        # Two tokens only, and whole pages mostly alike: long common prefixes are the rule.
        ids = [self.rng.randrange(2) if at % self.page_size == 0 else 0 for at in range(length)]
        return namespace, tuple(ids)

    def start(self) -> None:
        namespace, ids = self.draw()
        expected = self.longest(namespace, ids)
        assert self.cache.peek(namespace, pack_ids(ids), len(ids)) * self.page_size == expected
        match = self.cache.acquire(namespace, pack_ids(ids), len(ids))
        assert list(match.pages) == [
            self.oracle[namespace, ids[: end + self.page_size]] for end in range(0, expected, self.page_size)
        ]
        need = self.cache.pages_for(len(ids)) - len(match.pages)
        own = self.take(need)
        if own is None:
            self.cache.release(match.node)
            return
        self.users.append(User(namespace, ids, match.node, match.pages + own, expected, own))

    def take(self, count: int) -> array[int] | None:
        room, free, evictable = self.cache.room, self.cache.pool.free, self.cache.tree.evictable_pages
        own = self.cache.take(count)
        assert (own is None) == (count > room)
        if own is not None:
            assert self.cache.tree.evictable_pages == evictable - max(0, count - free)  # the shortfall, no more
            self.forget_evicted()
        return own

    def forget_evicted(self) -> None:
        """Drop from the oracle what the cache no longer has; what a user has locked must still be there, and no prefix may lack its parent."""
        held = {page for node in self.cache.tree.nodes() for page in node.pages}
        self.oracle = {prefix: page for prefix, page in self.oracle.items() if page in held}
        assert len(self.oracle) == len(held)
        for user in self.users:
            assert self.longest(user.namespace, user.ids) >= user.cached
        for namespace, ids in self.oracle:
            assert len(ids) == self.page_size or (namespace, ids[: -self.page_size]) in self.oracle

    def commit(self) -> None:
        """Some more of a user's pages enter the tree; duplicates stay its own."""
        if not self.users:
            return
        user = self.rng.choice(self.users)
        size = self.page_size
        end = self.rng.randrange(user.cached, len(user.ids) + 1) // size * size
        if end <= user.cached:
            return
        pages = user.pages[user.cached // size : end // size]
        extension = self.cache.extend(user.node, pack_ids(user.ids[user.cached : end]), pages)
        assert extension.present == max(0, min(end, self.longest(user.namespace, user.ids)) - user.cached) // size
        for at, page in zip(range(user.cached + size, end + size, size), pages, strict=True):
            if self.oracle.setdefault((user.namespace, user.ids[:at]), page) == page:
                user.own.remove(page)
        user.node, user.cached = extension.node, end

    def finish(self) -> None:
        if self.users:
            user = self.users.pop(self.rng.randrange(len(self.users)))
            self.cache.give_back(user.own)
            self.cache.release(user.node)

    def check(self) -> None:
        self.cache.check()
        cache = self.cache
        assert cache.pool.free + cache.pool.held + cache.tree.total_pages == cache.pool.total
        assert cache.pool.held == sum(len(user.own) for user in self.users)
        assert cache.tree.total_pages == len(self.oracle)
        locked = {
            (u.namespace, u.ids[:at]) for u in self.users for at in range(self.page_size, u.cached + 1, self.page_size)
        }
        assert cache.tree.locked_pages >= len(locked)
        if not self.users:
            assert cache.tree.locked_pages == 0


def run(seed: int, page_size: int, operations: int, pages: int) -> None:
    model = Model(seed, page_size, pages)
    steps = [model.start, model.commit, model.commit, model.finish]
    for _ in range(operations):
        model.rng.choice(steps)()
        model.check()
    while model.users:
        model.finish()
    model.check()
    model.cache.flush()
    assert model.cache.pool.free == pages
    assert list(model.cache.tree.nodes()) == []


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("pages", [12, 40, 200])
def test_random_operations_agree_with_a_dictionary_of_prefixes(page_size: int, pages: int) -> None:
    run(seed=page_size * 1000 + pages, page_size=page_size, operations=3_000, pages=pages)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_operations_agree_with_a_dictionary_of_prefixes_at_length(seed: int) -> None:
    run(seed=seed, page_size=(1, 4, 16)[seed % 3], operations=50_000, pages=(8, 30, 120)[seed % 3])
