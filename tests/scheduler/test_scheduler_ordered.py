"""The sorted collection that the orders of waiting and of eviction are kept in, beside Python's own sorting."""

from __future__ import annotations

import random

import pytest

from phloem_scheduler.ordered import MOST_IN_BLOCK, Ordered


@pytest.mark.parametrize("seed", range(4))
def test_it_is_always_in_order_whatever_comes_and_goes(seed: int) -> None:
    rng = random.Random(seed)
    ordered: Ordered[tuple[int, int]] = Ordered()
    there: list[tuple[int, int]] = []
    for number in range(6 * MOST_IN_BLOCK):
        # It grows at first, and comes to nothing at the end.
        if there and rng.random() < number / (4 * MOST_IN_BLOCK):
            ordered.remove(there.pop(rng.randrange(len(there))))
        else:
            entry = (rng.randrange(50), number)
            there.append(entry)
            ordered.add(entry)
        assert bool(ordered) == bool(there)
        if number % 97 == 0 or len(there) < 3:
            assert list(ordered) == sorted(there)
        if there:
            assert ordered.first() == min(there)
    for entry in there:
        ordered.remove(entry)
    assert not ordered


@pytest.mark.parametrize("step", [1, -1])
def test_entries_that_come_in_order_or_against_it(step: int) -> None:
    ordered: Ordered[tuple[int]] = Ordered()
    entries = [(number,) for number in range(5 * MOST_IN_BLOCK)]
    for entry in entries[::step]:
        ordered.add(entry)
    for entry in entries:
        assert ordered.first() == entry
        ordered.remove(entry)
    assert not ordered


def test_removing_what_is_not_there_is_noticed() -> None:
    ordered: Ordered[tuple[int, object]] = Ordered()
    ordered.add((1, None))
    ordered.add((3, None))
    for absent in ((0, None), (2, None), (4, None)):
        with pytest.raises(AssertionError):
            ordered.remove(absent)
