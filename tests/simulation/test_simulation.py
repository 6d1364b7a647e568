"""The whole system under seeded faults: nothing is lost, nothing is said twice, nothing is kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phloem.testing.simulation import draw_scenario, simulate
from phloem.testing.simulation.sweep import LONG_ENOUGH, check, shrink, sweep

from .mutations import MUTATIONS


def sweep_of(first: int, count: int) -> None:
    done = sweep(range(first, first + count))
    if done.failed is not None:
        scenario = done.failed.result.scenario
        told = "\n".join(done.failed.failures)
        pytest.fail(f"{told}\nreplay: python -m phloem.testing.simulate --seed {scenario.seed}", pytrace=False)
    if count >= LONG_ENOUGH:
        assert not done.never


@pytest.mark.timeout(400)
class TestFirstHundred:
    def test_nothing_is_lost(self) -> None:
        sweep_of(0, 100)


@pytest.mark.timeout(400)
class TestSecondHundred:
    def test_nothing_is_lost(self) -> None:
        sweep_of(100, 100)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_a_thousand_seeds() -> None:
    sweep_of(200, 1000)


def test_equal_scenarios_give_equal_traces() -> None:
    for seed in (3, 9):
        first, second = (simulate(draw_scenario(seed), keep_trace=True) for _ in range(2))
        assert first.messages > 500
        assert [entry.key for entry in first.entries] == [entry.key for entry in second.entries]
        assert first.digest == second.digest


def test_a_replay_in_another_process_gives_the_same_trace() -> None:
    digests = {replayed(seed="9", hash_seed=hash_seed) for hash_seed in ("1", "2")}
    assert digests == {simulate(draw_scenario(9)).digest}


def replayed(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "phloem.testing.simulate", "--seed", seed, "--no-trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.rsplit(maxsplit=1)[-1]


def test_other_seeds_give_other_runs() -> None:
    assert len({str(draw_scenario(seed)) for seed in range(50)}) == 50


def test_a_failure_is_shrunk_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS["an_end_is_told_twice"](monkeypatch)
    smallest = shrink(draw_scenario(1))
    assert check(smallest).failures
    assert (len(smallest.calls), len(smallest.faults)) == (1, 0)
