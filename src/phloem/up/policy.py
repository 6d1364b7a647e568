"""Decide what to start, restart, stop and give up on. Plain code: processes, clocks and signals are the caller's.

waiting -> running -> done                    (a one-shot that ended well)
                   -> backing_off -> running  (died; started again after a while)
                   -> stopped                 (asked to stop, or given up on)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BACK_OFF_FIRST_S = 0.2
BACK_OFF_MOST_S = 5.0
DEATHS_MOST = 5  # in DEATHS_WINDOW_S: what dies that often won't be cured by one more start
DEATHS_WINDOW_S = 60.0
MISUSED = 2  # exit code of a service that can't use a setting: it would say the same after one more start


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Start:
    """Start this instance now."""

    instance: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask this instance to drain (SIGTERM)."""

    instance: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this instance and all its children at once (SIGKILL)."""

    instance: str


Action = Start | Terminate | Kill


@dataclass(frozen=True, slots=True)
class Unit:
    """What the policy must know of an instance.

    `needs` maps instances to the condition they must meet first; `stops_after` names those that must be gone before it is asked to stop.
    """

    instance: str
    needs: Mapping[str, str] = field(default_factory=dict)
    stops_after: tuple[str, ...] = ()
    one_shot: bool = False


@dataclass(slots=True)
class _Life:
    unit: Unit
    state: State = State.WAITING
    healthy: bool = False
    started_once: bool = False
    terminated: bool = False
    killed: bool = False
    started_at: float = 0.0
    start_at: float = 0.0  # of the next start, while backing off
    streak: int = 0  # deaths since it last lived for DEATHS_WINDOW_S
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS_MOST))


class Policy:
    """The life of all instances together. Tell it what happened, then ask `decide` what to do.

    Args:
        units: every instance; order decides among equals.
        drain_s: seconds from `stop` until what still runs is killed.
    """

    def __init__(self, units: Iterable[Unit], *, drain_s: float) -> None:
        self._lives = {unit.instance: _Life(unit) for unit in units}
        self._drain_s = drain_s
        self._stop_at: float | None = None
        self._kill = False
        self.culprit: str | None = None
        """The instance that was given up on; None if all is well or a person asked to stop."""
        self.culprit_misused = False
        """Whether it ended because of a setting."""

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    @property
    def finished(self) -> bool:
        """Nothing runs any more, and nothing will be started."""
        running = any(life.state is State.RUNNING for life in self._lives.values())
        return not running and (self.stopping or all(life.state is State.DONE for life in self._lives.values()))

    def state(self, instance: str) -> State:
        return self._lives[instance].state

    def became_healthy(self, instance: str) -> None:
        """It answers. Forgotten when it dies."""
        self._lives[instance].healthy = True

    def exited(self, instance: str, code: int, now: float) -> None:
        """A running instance ended with ``code`` (negative: by that signal)."""
        life = self._lives[instance]
        assert life.state is State.RUNNING, f"{instance} exited while {life.state}"
        life.healthy = False
        if self.stopping:
            life.state = State.STOPPED
        elif life.unit.one_shot:
            life.state = State.DONE if code == 0 else State.STOPPED
            if code != 0:
                self._give_up(instance, now)
        elif code == MISUSED:
            life.state = State.STOPPED
            self.culprit_misused = True
            self._give_up(instance, now)
        else:
            self._bury(life, now)

    def could_not_start(self, instance: str, now: float) -> None:
        """The command that `Start` asked for does not exist or can't be executed: no other try would do better."""
        self._lives[instance].state = State.STOPPED
        self._give_up(instance, now)

    def stop(self, now: float) -> None:
        """A person or the system asks to stop: drain. Asked a second time: kill."""
        if self._stop_at is None:
            self._stop_at = now
        else:
            self._kill = True

    def decide(self, now: float) -> list[Action]:
        """What to do now. Each action is returned once, and counts as carried out."""
        if self._stop_at is None:
            return self._starts(now)
        if now >= self._stop_at + self._drain_s:
            self._kill = True
        return self._kills() if self._kill else self._terminations()

    def next_wake(self) -> float | None:
        """When `decide` should be asked again even if nothing happens; None: not before something does."""
        if self._stop_at is not None:
            return None if self._kill else self._stop_at + self._drain_s
        return min((life.start_at for life in self._lives.values() if life.state is State.BACKING_OFF), default=None)

    def _bury(self, life: _Life, now: float) -> None:
        life.streak = 1 if now - life.started_at >= DEATHS_WINDOW_S else life.streak + 1
        life.deaths.append(now)
        recent = [death for death in life.deaths if now - death < DEATHS_WINDOW_S]
        if len(recent) >= DEATHS_MOST:
            life.state = State.STOPPED
            self._give_up(life.unit.instance, now)
            return
        life.state = State.BACKING_OFF
        life.start_at = now + min(BACK_OFF_FIRST_S * 2 ** (life.streak - 1), BACK_OFF_MOST_S)

    def _give_up(self, instance: str, now: float) -> None:
        self.culprit = instance
        self._stop_at = now

    def _starts(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while starting := [life for life in self._lives.values() if self._is_due(life, now)]:
            for life in starting:  # what needs only their start can follow at once
                life.state, life.started_once, life.started_at = State.RUNNING, True, now
                actions.append(Start(life.unit.instance))
        return actions

    def _is_due(self, life: _Life, now: float) -> bool:
        if life.state is State.BACKING_OFF:
            return now >= life.start_at
        return life.state is State.WAITING and self._may_start(life.unit)

    def _may_start(self, unit: Unit) -> bool:
        return all(self._meets(self._lives[other], condition) for other, condition in unit.needs.items())

    @staticmethod
    def _meets(life: _Life, condition: str) -> bool:
        match condition:
            case "service_completed_successfully":
                return life.state is State.DONE
            case "service_healthy":
                return life.healthy
            case _:
                return life.started_once

    def _terminations(self) -> list[Action]:
        actions: list[Action] = []
        for life in self._lives.values():
            blocked = any(self._lives[other].state is State.RUNNING for other in life.unit.stops_after)
            if life.state is State.RUNNING and not life.terminated and not blocked:
                life.terminated = True
                actions.append(Terminate(life.unit.instance))
        return actions

    def _kills(self) -> list[Action]:
        actions: list[Action] = []
        for life in self._lives.values():
            if life.state is State.RUNNING and not life.killed:
                life.killed = True
                actions.append(Kill(life.unit.instance))
        return actions
