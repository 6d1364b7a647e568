"""Each deliberate bug is caught within 200 seeds."""

from __future__ import annotations

import pytest

from phloem.testing.simulation.sweep import sweep

from .mutations import MUTATIONS

SEEDS = 200
QUICK = (
    "a_lock_is_not_released",
    "an_end_is_told_twice",
    "a_matcher_is_not_replayed",
    "a_cancelled_choice_keeps_its_row",
)
"""Those that every run of the tests looks at; the others take longer."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in MUTATIONS])
def test_a_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    done = sweep(range(SEEDS))
    assert done.failed is not None, f"{name} was not noticed in {done.runs} seeds"
