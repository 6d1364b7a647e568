"""The radix tree: matching, splits, locks and eviction, case by case."""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array

import pytest

from phloem_proto.codec import pack_ids
from phloem_scheduler.cache import Cache
from phloem_scheduler.tree import TOKEN_BYTES, RadixTree, common_length

HERE = ("", "")


def key(*ids: int) -> bytes:
    return pack_ids(ids)


def put(cache: Cache, ids: bytes, namespace: tuple[str, str] = HERE) -> int:
    """Insert ids as a finished request would; returns how many pages were there already."""
    pages = len(ids) // (TOKEN_BYTES * cache.page_size)
    ids = ids[: pages * TOKEN_BYTES * cache.page_size]
    own = cache.take(pages)
    assert own is not None
    node = cache.acquire(namespace, b"", 0).node
    extension = cache.extend(node, ids, own)
    cache.give_back(own[: extension.present])
    cache.release(extension.node)
    cache.check()
    return extension.present


@pytest.mark.parametrize("unit_tokens", [1, 4, 64])
@pytest.mark.parametrize("differs_at", [0, 1, 2, 63, 64, 65, 127, 128, 1000, 1999, 2000])
def test_common_length_is_floored_to_a_page(unit_tokens: int, differs_at: int) -> None:
    left = list(range(2000))
    right = [*left[:differs_at], 999_999, *left[differs_at + 1 :]][:2000] if differs_at < 2000 else left
    unit = unit_tokens * TOKEN_BYTES
    same = common_length(key(7, *left), TOKEN_BYTES, key(*right), unit)
    whole = 2000 // unit_tokens * unit_tokens
    assert same == min(differs_at // unit_tokens * unit_tokens, whole) * TOKEN_BYTES


def test_a_full_partial_and_missing_prefix_match() -> None:
    cache = Cache(64, page_size=1)
    put(cache, key(1, 2, 3, 4))
    assert [
        cache.peek(HERE, ids, 99) for ids in (key(1, 2, 3, 4), key(1, 2, 9), key(9), key(), key(1, 2, 3, 4, 5))
    ] == [
        4,
        2,
        0,
        0,
        4,
    ]


def test_insert_says_how_much_was_there() -> None:
    cache = Cache(64, page_size=1)
    assert put(cache, key(1, 2, 3)) == 0
    assert put(cache, key(1, 2, 4, 5)) == 2
    assert put(cache, key(1, 2, 3)) == 3
    assert cache.tree.total_pages == 5


def test_queries_that_diverge_split_but_keep_the_total() -> None:
    cache = Cache(64, page_size=1)
    put(cache, key(1, 2, 3, 4, 5, 6, 7, 8))
    put(cache, key(1, 2, 9, 10))
    for query in (key(1, 2, 3, 4, 0), key(1, 2, 3, 4, 5, 6, 0)):
        cache.release(cache.acquire(HERE, query, 99).node)
        cache.check()
        assert cache.tree.total_pages == 10


@pytest.mark.parametrize(("page_size", "tokens"), [(1, 5), (2, 5), (4, 6), (16, 15), (16, 33)])
def test_only_whole_pages_enter_and_match(page_size: int, tokens: int) -> None:
    cache = Cache(64, page_size)
    ids = key(*range(tokens))
    put(cache, ids)
    assert cache.tree.total_pages == tokens // page_size
    match = cache.acquire(HERE, ids, tokens - 1)
    assert len(match.pages) == (tokens - 1) // page_size
    cache.release(match.node)


def test_a_match_gives_the_pages_that_were_inserted() -> None:
    cache = Cache(64, page_size=2)
    own = cache.take(3)
    assert own is not None
    node = cache.acquire(HERE, b"", 0).node
    node = cache.extend(node, key(1, 2, 3, 4, 5, 6), own).node
    match = cache.acquire(HERE, key(1, 2, 3, 4, 7, 8), 6)
    assert match.pages == own[:2]
    cache.release(match.node)
    cache.release(node)
    cache.check()


def test_namespaces_never_share_and_never_collide() -> None:
    cache = Cache(64, page_size=1)
    spaces = [("", ""), ("bc", "a"), ("c", "ab"), ("a", "bc"), ("", "abc")]
    for space in spaces:
        assert cache.peek(space, key(1, 2, 3), 99) == 0
        put(cache, key(1, 2, 3), space)
    assert all(cache.peek(space, key(1, 2, 3), 99) == 3 for space in spaces)
    assert cache.tree.total_pages == 15
    cache.flush()
    assert list(cache.tree.nodes()) == []


def test_a_lock_moves_its_path_from_evictable_to_locked_and_back() -> None:
    cache = Cache(64, page_size=1)
    put(cache, key(1, 2, 3))
    assert (cache.tree.evictable_pages, cache.tree.locked_pages) == (3, 0)
    node = cache.acquire(HERE, key(1, 2, 3), 99).node
    again = cache.acquire(HERE, key(1, 2, 3), 99).node
    assert (cache.tree.evictable_pages, cache.tree.locked_pages) == (0, 3)
    cache.release(node)
    assert (cache.tree.evictable_pages, cache.tree.locked_pages) == (0, 3)
    cache.release(again)
    assert (cache.tree.evictable_pages, cache.tree.locked_pages) == (3, 0)


def test_a_split_keeps_the_lock_of_the_whole_path() -> None:
    cache = Cache(64, page_size=1)
    put(cache, key(1, 2, 3, 4))
    long = cache.acquire(HERE, key(1, 2, 3, 4), 99).node
    short = cache.acquire(HERE, key(1, 2, 9), 99).node
    cache.release(long)
    assert cache.tree.locked_pages == 2
    assert len(cache.tree.evict(99)) == 2
    cache.release(short)
    assert cache.tree.locked_pages == 0


def test_eviction_frees_exactly_the_shortfall_from_the_oldest_leaf_on() -> None:
    cache = Cache(8, page_size=1)
    put(cache, key(1, 2, 3))
    put(cache, key(5, 6, 7))
    cache.release(cache.acquire(HERE, key(1, 2, 3), 99).node)  # now the second is the oldest
    own = cache.take(4)  # 2 are free
    assert own is not None
    assert [cache.peek(HERE, key(1, 2, 3), 99), cache.peek(HERE, key(5, 6, 7), 99)] == [3, 1]
    cache.give_back(own)
    cache.check()


def test_eviction_cascades_to_parents_and_skips_locked_paths() -> None:
    cache = Cache(64, page_size=1)
    for tail in (3, 4, 5):
        put(cache, key(1, 2, tail))
    locked = cache.acquire(HERE, key(1, 2, 4), 99).node
    assert len(cache.tree.evict(99)) == 2
    assert cache.tree.total_pages == 3
    cache.release(locked)
    assert len(cache.tree.evict(99)) == 3
    assert cache.tree.total_pages == 0


def test_a_growing_output_stays_one_node_until_somebody_else_uses_it() -> None:
    cache = Cache(64, page_size=1)
    node = cache.acquire(HERE, b"", 0).node
    for token in range(20):
        own = cache.take(1)
        assert own is not None
        node = cache.extend(node, key(token), own).node
    assert len(list(cache.tree.nodes())) == 2
    other = cache.acquire(HERE, key(*range(20)), 20).node
    own = cache.take(1)
    assert own is not None
    grown = cache.extend(node, key(20), own).node
    assert len(list(cache.tree.nodes())) == 3
    cache.check()
    cache.release(grown)
    assert cache.tree.locked_pages == 20
    cache.release(other)
    cache.check()


def test_two_requests_that_computed_the_same_pages_keep_one_copy() -> None:
    cache = Cache(64, page_size=1)
    first, second = cache.take(3), cache.take(3)
    assert first is not None
    assert second is not None
    one = cache.extend(cache.acquire(HERE, b"", 0).node, key(1, 2, 3), first)
    two = cache.extend(cache.acquire(HERE, b"", 0).node, key(1, 2, 3), second)
    assert (one.present, two.present) == (0, 3)
    assert cache.pool.held == 3
    cache.give_back(second)
    cache.release(one.node)
    cache.release(two.node)
    cache.check()


def test_with_reuse_off_nothing_is_kept() -> None:
    cache = Cache(64, page_size=1, reuse=False)
    own = cache.take(3)
    assert own is not None
    extension = cache.extend(cache.acquire(HERE, key(1, 2, 3), 2).node, key(1, 2, 3), own)
    assert extension.present == 3
    cache.give_back(own)
    cache.release(extension.node)
    assert cache.acquire(HERE, key(1, 2, 3), 2).pages == array("I")


def test_ten_thousand_sequences_share_a_long_prefix_in_little_memory() -> None:
    """The shared 10,000 tokens are stored once: 10,000 leaves cost what they add (100 tokens each), not what they share."""
    tree = RadixTree(page_size=1)
    shared = key(*range(10_000))
    node = tree.acquire(HERE, b"").node
    node = tree.extend(node, shared, array("I", range(10_000))).node
    tree.release(node)
    tracemalloc.start()
    for number in range(2_000):
        own = key(1_000_000 + number, *range(99))
        node = tree.extend(tree.acquire(HERE, shared).node, own, array("I", range(100))).node
        tree.release(node)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert tree.total_pages == 10_000 + 2_000 * 100
    assert used < 2_000 * 2_500  # 800 bytes of key and pages each, and the node itself


def test_work_per_operation_does_not_grow_with_the_tree() -> None:
    """Operations at 20,000 nodes take at most a few times those at 200, eviction included (linear ones would take 100 times)."""

    def seconds_at(nodes: int) -> float:
        tree = RadixTree(page_size=1)
        rng = random.Random(1)
        for number in range(nodes):
            ids = key(rng.randrange(1 << 30), number)
            tree.release(tree.extend(tree.acquire(HERE, ids).node, ids, array("I", (0, 1))).node)
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for number in range(200):
                ids = key(rng.randrange(1 << 30), number)
                tree.release(tree.extend(tree.acquire(HERE, ids).node, ids, array("I", (0, 1))).node)
                tree.evict(2)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds_at(20_000) < 12 * seconds_at(200)


def test_a_page_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size"):
        RadixTree(0)
