"""One fault at a time, on the simulated clock: how long clients wait, and that nobody has to ask twice."""

from __future__ import annotations

import json

import pytest

from phloem.testing.simulation import Scenario, simulate
from phloem.testing.simulation.scenario import SCHEMAS, Call, Fault, Machine
from phloem.testing.simulation.sweep import Run, check

STREAMS = 8
AT = 3.0
"""When the fault comes: all streams are in the middle of their answers."""
STEP_S = 0.03


def streams(count: int = STREAMS, at: float = 2.0, apart: float = 0.02) -> tuple[Call, ...]:
    """Calls of which every other is constrained."""
    return tuple(_stream(number, at + apart * number) for number in range(count))


def _stream(number: int, at: float) -> Call:
    params: dict[str, object] = {"max_new_tokens": 120, "ignore_eos": True, "temperature": 0.7, "sampling_seed": number}
    if number % 2:
        params = {
            "max_new_tokens": 120,
            "temperature": 0.7,
            "sampling_seed": number,
            "json_schema": json.dumps(SCHEMAS[0]),
        }
    return Call(number, at, {"text": f"Tell me of {number}: ", "sampling_params": params, "stream": True})


def under(*faults: Fault, calls: tuple[Call, ...] = (), machine: Machine | None = None) -> Run:
    """The streams under these faults; fails if anything is lost."""
    machine = machine or Machine(pages=400, step_s=(STEP_S, STEP_S))
    run = check(Scenario(7, machine, calls or streams(), faults))
    assert not run.failures
    return run


def worst_gap_s(run: Run) -> float:
    return max(outcome.longest_gap_s for outcome in run.result.outcomes.values())


def assert_nobody_noticed_more_than_a_pause(run: Run, pause_s: float) -> None:
    for number, outcome in run.result.outcomes.items():
        assert (number, outcome.tries, outcome.refused, outcome.broken) == (number, 1, 0, 0)
    assert worst_gap_s(run) <= pause_s


def test_one_of_two_workers_is_killed() -> None:
    run = under(Fault(0, AT, "kill", "worker-1", seconds=30.0))
    assert_nobody_noticed_more_than_a_pause(run, 3.0)
    assert run.result.seen["constrained request resumed"] > 0


def test_the_only_worker_is_killed_and_comes_back() -> None:
    run = under(Fault(0, AT, "kill", "worker-0", seconds=2.0), machine=Machine(workers=1, pages=400))
    assert_nobody_noticed_more_than_a_pause(run, 2.0 + 1.5)


@pytest.mark.parametrize("leader", ["scheduler-0", "scheduler-1"])
def test_a_scheduler_is_killed(leader: str) -> None:
    run = under(Fault(0, AT, "kill", leader, seconds=30.0))
    assert_nobody_noticed_more_than_a_pause(run, 5.0)


def test_the_only_scheduler_is_killed_and_comes_back() -> None:
    run = under(
        Fault(0, AT, "kill", "scheduler-0", seconds=1.0),
        machine=Machine(schedulers=1, pages=400, step_s=(STEP_S, STEP_S)),
    )
    assert_nobody_noticed_more_than_a_pause(run, 5.0)


@pytest.mark.parametrize("one", ["tokenizer-0", "tokenizer-1"])
def test_a_tokenizer_is_killed(one: str) -> None:
    run = under(Fault(0, AT, "kill", one, seconds=30.0))
    assert_nobody_noticed_more_than_a_pause(run, 3.0)


def test_the_broker_is_gone_for_five_seconds() -> None:
    run = under(Fault(0, AT, "broker", seconds=5.0))
    assert_nobody_noticed_more_than_a_pause(run, 5.0 + 2.0)


def test_schedulers_that_do_not_hear_each_other_do_not_stop_the_service() -> None:
    run = under(Fault(0, AT, "partition", "scheduler-0", "scheduler-1", seconds=8.0), calls=streams(9, apart=0.9))
    assert_nobody_noticed_more_than_a_pause(run, 3.0)


def test_a_gateway_that_nobody_hears_goes_on_when_it_is_back() -> None:
    others = ("scheduler-0", "scheduler-1", "tokenizer-0", "tokenizer-1")
    faults = [Fault(number, AT, "partition", "gateway-0", other, seconds=6.0) for number, other in enumerate(others)]
    run = under(*faults)
    assert_nobody_noticed_more_than_a_pause(run, 6.0 + 3.0)
    assert max(o.longest_gap_s for n, o in run.result.outcomes.items() if n % 2) < 1.0  # those of the other gateway


def test_a_worker_that_its_scheduler_does_not_hear_is_replaced_and_comes_back() -> None:
    faults = [Fault(n, AT, "partition", "worker-0", f"scheduler-{n}", seconds=6.0) for n in range(2)]
    assert_nobody_noticed_more_than_a_pause(under(*faults), 4.0)


@pytest.mark.parametrize("role", ["gateway", "tokenizer", "scheduler", "worker", "grammar"])
def test_a_role_is_restarted_one_by_one(role: str) -> None:
    faults = [Fault(index, AT + 3 * index, "drain", f"{role}-{index}", seconds=0.5) for index in range(2)]
    machine = Machine(grammars=2, pages=400, step_s=(STEP_S, STEP_S))
    run = under(*faults, calls=streams(9, apart=0.9), machine=machine)
    if role != "gateway":
        assert_nobody_noticed_more_than_a_pause(run, 5.0)


def test_a_scheduler_that_is_told_to_stop_hands_over_at_once() -> None:
    run = under(Fault(0, AT, "drain", "scheduler-0", seconds=20.0))
    assert_nobody_noticed_more_than_a_pause(run, 5.0)


def test_undisturbed_runs_are_undisturbed() -> None:
    result = simulate(Scenario(7, Machine(pages=400), streams()))
    assert result.complaints == []
    assert all(outcome.answers and outcome.tries == 1 for outcome in result.outcomes.values())
