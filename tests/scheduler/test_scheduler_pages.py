"""The page pool: runs of neighbours where there are any, every page with one owner, against plain sets."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterable

import pytest

from phloem_scheduler.pages import OutOfPages, PagePool

Run = tuple[int, int]  # first page, one past the last


def ids(*pages: int) -> array[int]:
    return array("I", pages)


def runs_of(pages: Iterable[int]) -> list[Run]:
    """Cut pages, in their order, where the next is not the neighbour of the last."""
    runs: list[Run] = []
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs


def fewest_runs(lengths: Iterable[int], count: int) -> int:
    """How many runs of these lengths it takes to supply count pages, the longest first."""
    needed = 0
    for length in sorted(lengths, reverse=True):
        if count <= 0:
            break
        count -= length
        needed += 1
    return needed


class Model:
    """A pool beside plain sets of who owns what, and requests that grow, commit to the tree, and end."""

    def __init__(self, seed: int, pages: int, first: int) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(pages, first)
        self.free = set(range(first, first + pages))
        self.tree: list[int] = []
        self.tables: list[list[int]] = []
        self.given: list[int] = []  # all that was ever handed out, in order

    def take(self, count: int, after: int | None = None) -> list[int]:
        free = runs_of(sorted(self.free))
        if count > len(self.free):
            with pytest.raises(OutOfPages):
                self.pool.take(count, after)
            return []
        pages = list(self.pool.take(count, after))
        assert len(pages) == count
        assert len(set(pages)) == count
        assert self.free.issuperset(pages)
        self.expect_runs(pages, free, after)
        self.free.difference_update(pages)
        self.given += pages
        return pages

    def expect_runs(self, pages: list[int], free: list[Run], after: int | None) -> None:
        """The table's last run grows if it can; what it can't take comes in as few runs as there can be."""
        lengths = {start: end - start for start, end in free}
        grown = 0
        if after is not None and after + 1 in lengths:
            grown = min(len(pages), lengths.pop(after + 1))
            assert pages[:grown] == list(range(after + 1, after + 1 + grown))
        rest = pages[grown:]
        assert len(runs_of(rest)) == fewest_runs(lengths.values(), len(rest))
        enough = [length for length in lengths.values() if length >= len(rest)]
        if rest and enough:
            assert lengths[rest[0]] == min(enough)  # longer runs stay whole

    def begin(self) -> None:
        pages = self.take(self.rng.choice((0, 1, 1, 2, 3, 8, 20, 60)))
        if pages:
            self.tables.append(pages)

    def grow(self) -> None:
        if self.tables:
            table = self.rng.choice(self.tables)
            table += self.take(self.rng.choice((1, 1, 1, 2, 5)), after=table[-1])

    def commit(self) -> None:
        """Some of a request's pages, in any order, become the tree's."""
        if self.tables:
            table = self.tables.pop(self.rng.randrange(len(self.tables)))
            end = self.rng.randrange(len(table) + 1)
            pages = table[:end] if self.rng.random() < 0.5 else self.rng.sample(table, end)
            self.pool.to_tree(array("I", pages))
            self.tree += pages
            rest = [page for page in table if page not in pages]
            if rest:
                self.tables.append(rest)

    def evict(self) -> None:
        if self.tree:
            at = self.rng.randrange(len(self.tree))
            pages = self.tree[at : at + self.rng.randrange(1, 20)]
            del self.tree[at : at + len(pages)]
            self.pool.from_tree(array("I", pages))
            self.free.update(pages)

    def end(self) -> None:
        if self.tables:
            table = self.tables.pop(self.rng.randrange(len(self.tables)))
            self.pool.give_back(array("I", table))
            self.free.update(table)

    def step(self) -> None:
        operations = (self.begin, self.grow, self.commit, self.evict, self.end)
        self.rng.choices(operations, weights=(2, 5, 1, 1, 1))[0]()

    def check(self) -> None:
        self.pool.check()
        held = sum(map(len, self.tables))
        assert (self.pool.free, self.pool.held, self.pool.in_tree) == (len(self.free), held, len(self.tree))
        assert self.pool.total == self.pool.free + self.pool.held + self.pool.in_tree


@pytest.mark.parametrize(("pages", "first"), [(40, 0), (150, 7)])
def test_random_operations_agree_with_plain_sets(pages: int, first: int) -> None:
    model = Model(pages, pages, first)
    for _ in range(20_000):
        model.step()
        model.check()
    while model.tables:
        model.end()
    while model.tree:
        model.evict()
    model.check()
    assert list(model.pool.take(pages)) == list(range(first, first + pages))  # all of it has merged again


def test_equal_calls_give_equal_pages() -> None:
    one, two = Model(3, 500, 1), Model(3, 500, 1)
    for _ in range(3_000):
        one.step()
        two.step()
    assert one.given == two.given
    assert len(one.given) > 3_000


def test_a_fresh_pool_gives_one_run_after_the_other() -> None:
    pool = PagePool(1_000, first=5)
    assert runs_of(pool.take(300)) == [(5, 305)]
    assert runs_of(pool.take(700)) == [(305, 1_005)]
    assert pool.free == 0


@pytest.mark.parametrize("seed", range(5))
def test_pages_freed_in_any_order_merge_to_one_run(seed: int) -> None:
    pool = PagePool(200)
    pages = pool.take(200)
    for page in random.Random(seed).sample(list(pages), 200):
        pool.give_back(ids(page))
        pool.check()
    assert runs_of(pool.take(200)) == [(0, 200)]


def test_no_more_runs_than_needed_when_every_other_page_is_free() -> None:
    pool = PagePool(100)
    pages = pool.take(100)
    pool.give_back(pages[:40:2])  # 20 single pages
    pool.give_back(pages[60:64])
    pool.give_back(pages[70:77])
    pool.check()
    assert runs_of(pool.take(5)) == [(70, 75)]  # one run, though four pages, the single ones and a longer run would do
    pool.give_back(pages[70:75])
    assert runs_of(pool.take(11)) == [(70, 77), (60, 64)]
    assert len(runs_of(pool.take(20))) == 20
    assert pool.free == 0


def test_one_page_comes_from_the_smallest_leftover() -> None:
    pool = PagePool(100)
    pages = pool.take(50)
    pool.give_back(pages[10:14])
    pool.give_back(pages[20:21])
    pool.give_back(pages[30:32])
    assert [pool.take(1)[0] for _ in range(5)] == [20, 30, 31, 10, 11]


def test_a_growing_row_gets_the_next_page_while_that_is_free() -> None:
    pool = PagePool(100)
    table, hole = pool.take(10), pool.take(1)
    pool.take(1)
    pool.give_back(table[6:])  # pages 6 to 9
    pool.give_back(hole)  # page 10: now 6 to 10 are free, and 12 to 99
    for page in range(6, 11):
        assert list(pool.take(1, after=page - 1)) == [page]
    assert list(pool.take(1, after=10)) == [12]  # 11 belongs to another


def test_growth_by_several_pages_fills_what_follows_and_goes_on_in_one_run() -> None:
    pool = PagePool(100)
    table = pool.take(10)
    pool.give_back(table[4:7])
    assert runs_of(pool.take(8, after=3)) == [(4, 7), (10, 15)]
    assert runs_of(pool.take(8, after=14)) == [(15, 23)]


@pytest.mark.parametrize("after", [-1, 3, 98, 99, 100, 5_000])
def test_a_last_page_without_a_free_neighbour_changes_nothing(after: int) -> None:
    pool = PagePool(100, first=1)
    pool.take(20)
    assert list(pool.take(2, after=after)) == [21, 22]
    pool.check()


def test_too_many_pages_are_refused_and_none_is_taken() -> None:
    pool = PagePool(10)
    pool.take(4)
    with pytest.raises(OutOfPages, match="7 pages asked for, 6 free"):
        pool.take(7, after=3)
    pool.check()
    assert (pool.free, pool.held) == (6, 4)
    assert list(pool.take(6)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_asked_for_is_nothing_given(count: int) -> None:
    pool = PagePool(10)
    assert list(pool.take(count, after=3)) == []
    assert (pool.free, pool.held) == (10, 0)
    pool.check()


@pytest.mark.parametrize("transfer", ["give_back", "to_tree", "from_tree"])
@pytest.mark.parametrize(
    "pages",
    [
        ids(14, 14),  # twice in one call
        ids(14, 15, 16, 15),
        ids(30),  # free
        ids(17, 18, 19, 20, 21),  # owned up to 19, then free
        ids(9),  # below the first page
        ids(9, 10, 11),
        ids(0),
        ids(109, 110),  # past the last page
        ids(110),
        ids(2**32 - 1),
        ids(12, 13),  # 12 is another's
        ids(14, 13, 12),
    ],
    ids=str,
)
def test_a_page_that_is_not_the_owners_to_give_is_caught(transfer: str, pages: array[int]) -> None:
    """Pages 13 to 19 and the last, 109, are the owner's; 10 to 12 belong to the other kind of owner; the rest is free."""
    pool = PagePool(100, first=10)
    rest = pool.take(100)
    pool.give_back(rest[10:99])
    pool.to_tree(rest[3:10] + rest[99:] if transfer == "from_tree" else rest[:3])
    with pytest.raises(AssertionError, match=r"page|state"):
        getattr(pool, transfer)(pages)


@pytest.mark.parametrize("transfer", ["give_back", "to_tree", "from_tree"])
def test_a_page_moves_once(transfer: str) -> None:
    pool = PagePool(100)
    pages = pool.take(30)
    if transfer == "from_tree":
        pool.to_tree(pages)
    getattr(pool, transfer)(pages)
    pool.check()
    for again in (pages, pages[3:4], pages[::-1]):
        with pytest.raises(AssertionError, match="state"):
            getattr(pool, transfer)(again)


def test_work_per_page_does_not_grow_with_the_pieces_of_the_pool() -> None:
    """Taking and freeing single pages costs at most a few times as much at 200,000 free runs as at 200 (a linear search: 1,000 times)."""

    def seconds_at(runs: int) -> float:
        pool = PagePool(2 * runs)
        pool.give_back(pool.take(2 * runs)[::2])
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            taken = [pool.take(1, after=4 * number) for number in range(100)]
            taken.append(pool.take(50))
            for pages in taken:
                pool.give_back(pages)
            best = min(best, time.perf_counter() - start)
        pool.check()
        return best

    assert seconds_at(200_000) < 12 * seconds_at(200)


def test_a_pool_of_no_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        PagePool(0)
