"""When `phloem up` starts, restarts, stops and gives up: the policy alone, with times as arguments."""

from __future__ import annotations

import random

import pytest

from phloem.up.policy import DEATHS_MOST, MISUSED, Action, Kill, Policy, Start, State, Terminate, Unit

SERVICES = [
    Unit("pull-1", one_shot=True, stops_after=("gateway-1", "worker-1", "nats-1")),
    Unit("nats-1", needs={"pull-1": "service_completed_successfully"}, stops_after=("gateway-1", "worker-1")),
    Unit("worker-1", needs={"nats-1": "service_healthy"}, stops_after=("gateway-1",)),
    Unit("gateway-1", needs={"nats-1": "service_healthy", "worker-1": "service_started"}),
]


def names(actions: list[Action], kind: type[Action]) -> list[str]:
    assert all(isinstance(action, kind) for action in actions), actions
    return [action.instance for action in actions]


def running() -> Policy:
    policy = Policy(SERVICES, drain_s=10.0)
    policy.decide(0.0)
    policy.exited("pull-1", 0, 0.0)
    policy.decide(0.0)
    policy.became_healthy("nats-1")
    policy.decide(0.0)
    return policy


def test_instances_start_once_what_they_need_is_there() -> None:
    policy = Policy(SERVICES, drain_s=10.0)
    assert names(policy.decide(0.0), Start) == ["pull-1"]
    assert policy.decide(1.0) == []
    policy.exited("pull-1", 0, 1.0)
    assert names(policy.decide(1.0), Start) == ["nats-1"]
    assert policy.decide(2.0) == []
    policy.became_healthy("nats-1")
    assert names(policy.decide(2.0), Start) == ["worker-1", "gateway-1"]


def test_the_order_of_the_file_does_not_matter() -> None:
    policy = Policy(
        [Unit("a", needs={"b": "service_started"}), Unit("b", needs={"c": "service_started"}), Unit("c")], drain_s=1.0
    )
    assert names(policy.decide(0.0), Start) == ["c", "b", "a"]


def test_a_failed_one_shot_stops_everything() -> None:
    policy = Policy(SERVICES, drain_s=10.0)
    policy.decide(0.0)
    policy.exited("pull-1", 1, 1.0)
    assert policy.culprit == "pull-1"
    assert policy.decide(1.0) == []
    assert policy.finished


def test_back_off_doubles_from_a_fifth_of_a_second_to_five() -> None:
    policy = running()
    now, waits = 0.0, []
    for _ in range(8):
        now += 15.0  # four deaths a minute are not enough to give up
        policy.exited("worker-1", 1, now)
        assert policy.decide(now) == []
        wake = policy.next_wake()
        assert wake is not None
        waits.append(round(wake - now, 3))
        assert policy.decide(wake - 0.01) == []
        assert names(policy.decide(wake), Start) == ["worker-1"]
        now = wake
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_a_minute_alive_forgives_earlier_deaths() -> None:
    policy = running()
    for now in (10.0, 20.0, 30.0):
        policy.exited("worker-1", 1, now)
        policy.decide(now + 5.0)
    policy.exited("worker-1", 1, 100.0)
    assert policy.next_wake() == pytest.approx(100.2)


def test_the_fifth_death_in_a_minute_stops_everything() -> None:
    policy = running()
    now = 1.0
    for _ in range(DEATHS_MOST - 1):
        policy.exited("worker-1", -9, now)
        wake = policy.next_wake()
        assert wake is not None
        now = wake
        assert names(policy.decide(now), Start) == ["worker-1"]
    policy.exited("worker-1", -9, now)
    assert policy.culprit == "worker-1"
    assert names(policy.decide(now), Terminate) == ["gateway-1"]


def test_who_cannot_use_a_setting_is_not_started_again() -> None:
    policy = running()
    policy.exited("worker-1", MISUSED, 1.0)
    assert (policy.culprit, policy.culprit_misused) == ("worker-1", True)
    assert names(policy.decide(1.0), Terminate) == ["gateway-1"]


def test_stopping_goes_from_the_edge_inwards_and_ends() -> None:
    policy = running()
    policy.stop(5.0)
    assert names(policy.decide(5.0), Terminate) == ["gateway-1"]
    assert policy.decide(6.0) == []
    policy.exited("gateway-1", 0, 6.0)
    assert names(policy.decide(6.0), Terminate) == ["worker-1"]
    policy.exited("worker-1", 0, 7.0)
    assert names(policy.decide(7.0), Terminate) == ["nats-1"]
    assert not policy.finished
    policy.exited("nats-1", 1, 7.5)
    assert policy.finished
    assert policy.culprit is None


def test_what_is_not_gone_by_the_deadline_is_killed_once() -> None:
    policy = running()
    policy.stop(5.0)
    policy.decide(5.0)
    assert policy.next_wake() == 15.0
    assert names(policy.decide(15.0), Kill) == ["nats-1", "worker-1", "gateway-1"]
    assert policy.decide(15.1) == []
    assert policy.next_wake() is None


def test_a_second_stop_kills_at_once() -> None:
    policy = running()
    policy.stop(5.0)
    policy.decide(5.0)
    policy.stop(5.2)
    assert names(policy.decide(5.2), Kill) == ["nats-1", "worker-1", "gateway-1"]


def test_nothing_is_started_while_stopping() -> None:
    policy = running()
    policy.exited("worker-1", 1, 4.0)
    policy.stop(4.1)
    assert names(policy.decide(60.0), Kill) == ["nats-1", "gateway-1"]
    assert policy.state("worker-1") is State.BACKING_OFF


def test_a_command_that_cannot_be_executed_stops_everything() -> None:
    policy = running()
    policy.exited("worker-1", 1, 1.0)
    policy.decide(2.0)
    policy.could_not_start("worker-1", 2.0)
    assert policy.culprit == "worker-1"
    assert policy.stopping


@pytest.mark.parametrize("seed", range(20))
def test_random_deaths_never_start_what_runs_and_always_end(seed: int) -> None:
    rng = random.Random(seed)
    policy = Policy(SERVICES, drain_s=10.0)
    alive: set[str] = set()
    now = 0.0
    for step in range(400):
        now += rng.random() * 3.0
        if step == 300:
            policy.stop(now)
        for action in policy.decide(now):
            match action:
                case Start(instance):
                    assert instance not in alive
                    assert not policy.stopping
                    alive.add(instance)
                case Terminate(instance) | Kill(instance):
                    assert instance in alive
        for instance in sorted(alive):
            if rng.random() < 0.15:
                alive.remove(instance)
                policy.exited(instance, 0 if instance == "pull-1" else rng.choice([0, 1, -9]), now)
            elif instance == "nats-1":
                policy.became_healthy(instance)
    assert policy.finished
    assert not alive
