"""How many threads a step gets: what is quicker now, found out while steps are computed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from phloem_gpu_worker.crew import LARGEST, Crew

Cost = Callable[[int], float]
"""Seconds of a step on so many threads."""


def run(crew: Crew, steps: int, cost: Cost, *, tokens: int = 1, noise: random.Random | None = None) -> list[int]:
    """The threads that each step was given."""
    given = []
    for _ in range(steps):
        threads = crew.threads(tokens)
        given.append(threads)
        crew.lasted(tokens, cost(threads) * (1.0 if noise is None else noise.uniform(0.8, 1.25)))
    return given


@pytest.mark.parametrize(("quick", "slow"), [(1, 2), (2, 1)])
def test_the_quicker_number_is_used_and_the_other_hardly_costs_anything(quick: int, slow: int) -> None:
    crew = Crew(2)
    given = run(crew, 10_000, lambda threads: 0.014 if threads == quick else 0.025)
    assert set(given[:64]) == {1, 2}
    assert given[64:].count(slow) < 0.005 * len(given)


def test_noise_keeps_it_from_neither() -> None:
    for seed in range(20):
        given = run(Crew(2), 5000, lambda threads: 0.014 if threads == 1 else 0.025, noise=random.Random(seed))
        assert given[1000:].count(1) > 0.98 * 4000


def test_it_follows_when_the_other_becomes_quicker() -> None:
    crew = Crew(4)
    run(crew, 5000, lambda threads: 0.010 if threads == 4 else 0.012)
    given = run(crew, 8000, lambda threads: 0.030 if threads == 4 else 0.012)
    assert given[4000:].count(3) > 0.99 * 4000


def test_steps_of_another_size_are_judged_apart() -> None:
    crew = Crew(2)
    for _ in range(500):
        run(crew, 1, lambda threads: 0.014 if threads == 1 else 0.025)
        run(crew, 1, lambda threads: 0.140 if threads == 1 else 0.080, tokens=64)
    assert run(crew, 40, lambda _: 1.0).count(1) > 30
    assert run(crew, 40, lambda _: 1.0, tokens=64).count(2) > 30


def test_long_steps_have_all_threads_always() -> None:
    assert set(run(Crew(2), 200, lambda threads: 1.0 * threads, tokens=LARGEST + 1)) == {2}


def test_one_thread_is_one_thread() -> None:
    assert set(run(Crew(1), 200, lambda _: 1.0)) == {1}
