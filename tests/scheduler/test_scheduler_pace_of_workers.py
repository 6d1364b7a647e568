"""A worker nobody has measured yet, or only in steps of one size, is not taken for a slow one."""

from __future__ import annotations

import pytest

from phloem_scheduler.placement import paces

from .fake_worker import FakeWorker, profile
from .world import World


@pytest.mark.parametrize("forward_ms", [0.001, 0.05, 20.0])
def test_a_worker_that_just_joined_gets_work_whatever_the_pace_of_the_others(forward_ms: float) -> None:
    world = World(shape=profile(pages=200), forward_ms=forward_ms)
    world.open([7] * 40, max_tokens=4)
    world.finish()
    world.join("late", FakeWorker(profile(pages=200), seed=9, forward_ms=forward_ms))
    for first in range(1, 5):
        world.open([first] * 40, max_tokens=20)
    world.finish()
    assert world.core.workers["late"].traffic.choices == 2


def test_a_worker_whose_steps_all_had_one_size_is_as_fast_as_the_others() -> None:
    """All of its time seems to go into tokens, which would make it 80 times as slow as an equal one that has shown what a token costs."""
    world = World(shape=profile(pages=200), workers=2)
    first, second = world.core.workers.values()
    for tokens in (300, 1, 200, 2):
        first.pace.measured(tokens, 0.25 + 0.004 * tokens)
    for _ in range(20):
        second.pace.measured(1, 0.25 + 0.004)
    pace = paces(world.core.workers.values())
    assert pace[second] == pace[first] == pytest.approx(0.004, rel=0.1)
