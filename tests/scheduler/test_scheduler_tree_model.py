"""Random operations on the tree against an oracle of plain prefixes (see `forest`).

After each operation what anybody can ask for is compared (who is first, matches, totals, a user's pages, and what each eviction freed); after
each third the tree is compared with itself and every page with the oracle too.
"""

from __future__ import annotations

import pytest

from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES

from .forest import Forest


def run(seed: int, operations: int) -> None:
    """Page size, number of workers, order and eviction follow from seed, so that it alone names a failure."""
    forest = Forest(
        seed,
        page_size=(1, 2, 4)[seed % 3],
        shelves=1 + seed // 3 % 3,
        policy=tuple(POLICIES)[seed // 2 % len(POLICIES)],
        eviction="lru" if seed % 2 else tuple(EVICTION)[seed // 2 % len(EVICTION)],
    )
    for number in range(operations):
        forest.step()
        forest.check(fully=number % 3 == 0)
    forest.empty()


@pytest.mark.parametrize("seed", range(80))
def test_random_operations_agree_with_an_oracle_of_prefixes(seed: int) -> None:
    run(seed, 1_250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_random_operations_agree_with_an_oracle_of_prefixes_at_length(seed: int) -> None:
    run(seed, 25_000)
