"""A worker nobody has measured yet is not taken for a slow one."""

from __future__ import annotations

import pytest

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
