"""Matchers of the live slots, beside the step loop.

A slot's matcher is built in a thread; until it is there, the slot's row sits steps out. Masks are filled in a thread while the forward pass
runs, many slots per job; a mask that is not there when it is needed leaves its row out of this step and is used in the next, since a row
that draws nothing stays where it is. Nobody waits for a slow grammar beyond a short grace, and a row that stays over its budget is failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from phloem_proto.messages import Grammar

from .errors import GrammarError
from .matchers import Bits, Matcher
from .threads import Submit

GRACE_S = 0.005
"""How long a step waits for masks once its forward pass is done: about half a decode step of a small model."""

_LOOK_S = 0.0005
"""How often a step that waits for masks looks whether its forward pass is done: a small part of the grace."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What masks may cost a row, in CPU time of the filling thread, so that a busy machine does not count."""

    mean_ms: float = 5.0
    """Mean over the last ``steps`` masks."""
    single_ms: float = 50.0
    """Any one mask."""
    steps: int = 16
    late_steps: int = 500
    """Steps in a row that may pass without a matcher's mask: at least a second, even if no other row makes steps longer."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a slot can't go on; ``code`` as in `RowFailure`."""

    code: str
    message: str


class State(Enum):
    """What a slot's matcher can do now."""

    READY = "ready"
    WAITING = "waiting"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True)
class _Seat:
    """One slot's matcher and its mask."""

    building: Future[Matcher]
    bits: Bits
    matcher: Matcher | None = None
    filling: Future[None] | None = None
    """The job that fills, or has filled, the mask of the current position."""
    filled: bool = False
    costs_ms: deque[float] = field(default_factory=deque)
    late: int = 0
    trouble: Trouble | None = None


class GrammarDesk:
    """Opens, feeds and closes matchers.

    Args:
        build: a fresh matcher for a grammar (`Engines.matcher`).
        words: int32 words of a mask.
        builders, fillers: where matchers are built and masks filled.
        cpu_s: CPU seconds of the calling thread (``time.thread_time``).
    """

    def __init__(
        self,
        build: Callable[[Grammar], Matcher],
        words: int,
        builders: Submit,
        fillers: Submit,
        cpu_s: Callable[[], float],
        budget: Budget | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._build = build
        self._words = words
        self._builders = builders
        self._fillers = fillers
        self._cpu_s = cpu_s
        self._budget = budget or Budget()
        self._grace_s = grace_s
        self._seats: dict[int, _Seat] = {}
        self.spent_ms = 0.0
        """CPU time of all masks so far."""

    def __len__(self) -> int:
        """Matchers that are held."""
        return len(self._seats)

    def open(self, slot: int, grammar: Grammar, held: list[int]) -> None:
        """Start to build the slot's matcher, advanced over its ``held`` output."""

        def build() -> Matcher:
            matcher = self._build(grammar)
            if held:
                matcher.accept(held)
            return matcher

        self._seats[slot] = _Seat(self._builders(build), np.zeros(self._words, dtype=np.int32))

    def close(self, slot: int) -> None:
        """Forget the slot's matcher, if it has one. What still runs for it comes to nothing."""
        seat = self._seats.pop(slot, None)
        if seat is not None:
            seat.building.cancel()

    def state(self, slot: int) -> State:
        """What can be drawn at this slot now. Never waits."""
        seat = self._seats[slot]
        if seat.matcher is None and seat.trouble is None and seat.building.done():
            self._take_built(seat)
        if seat.trouble is not None:
            return State.FAILED
        if seat.matcher is None:
            return self._count_late(seat)
        if seat.filling is None and seat.matcher.ended:
            return State.ENDED
        return State.READY

    def trouble(self, slot: int) -> Trouble:
        """Why the slot's state is `State.FAILED`."""
        trouble = self._seats[slot].trouble
        assert trouble is not None
        return trouble

    def await_any(self, slots: Iterable[int]) -> None:
        """Wait a grace for one of these slots' matchers, when a step has nothing else to do."""
        building = [seat.building for slot in slots if (seat := self._seats[slot]).matcher is None]
        if building:
            wait(building, timeout=self._grace_s, return_when="FIRST_COMPLETED")

    def begin(self, slots: Iterable[int]) -> None:
        """Start to fill masks of these slots (in state READY), the cheapest first; returns at once."""
        wanted = [seat for slot in slots if (seat := self._seats[slot]).filling is None]
        if not wanted:
            return
        wanted.sort(key=lambda seat: seat.costs_ms[-1] if seat.costs_ms else 0.0)
        job = self._fillers(lambda: self._fill_all(wanted))
        for seat in wanted:
            seat.filling = job

    def collect(self, slots: Iterable[int], computed: Callable[[], bool]) -> dict[int, Bits]:
        """Masks of those of these slots that are there. Those that are late for the first time are waited for until the forward pass is
        ``computed``, and a grace longer."""
        seats = {slot: self._seats[slot] for slot in slots}
        due = {
            seat.filling for seat in seats.values() if not seat.filled and seat.late == 0 and seat.filling is not None
        }
        while due and not computed():
            due = wait(due, timeout=_LOOK_S).not_done
        if due:
            wait(due, timeout=self._grace_s)
        ready: dict[int, Bits] = {}
        for slot, seat in seats.items():
            if seat.filled and seat.trouble is None:
                seat.late = 0
                ready[slot] = seat.bits
            elif seat.trouble is None:
                self._count_late(seat)
        return ready

    def accept(self, slot: int, token: int) -> bool:
        """Advance over a drawn token; whether the grammar has ended with it. A refusal makes the state FAILED."""
        seat = self._seats[slot]
        assert seat.matcher is not None
        assert seat.filled, "a token is accepted whose mask was not there"
        seat.filling, seat.filled = None, False
        try:
            seat.matcher.accept([token])
        except GrammarError as error:
            seat.trouble = Trouble("grammar_failed", str(error))
            return False
        return seat.matcher.ended

    def _take_built(self, seat: _Seat) -> None:
        try:
            seat.matcher = seat.building.result()
            seat.late = 0
        except GrammarError as error:
            seat.trouble = Trouble("grammar_failed", str(error))

    def _count_late(self, seat: _Seat) -> State:
        seat.late += 1
        if seat.late > self._budget.late_steps:
            seat.trouble = Trouble("grammar_too_slow", f"no mask within {self._budget.late_steps} steps")
            return State.FAILED
        return State.WAITING

    def _fill_all(self, seats: list[_Seat]) -> None:
        """In a filling thread. A seat's fields are written before ``filled``, which the step loop reads first."""
        for seat in seats:
            began = self._cpu_s()
            try:
                assert seat.matcher is not None
                seat.matcher.fill(seat.bits)
            except GrammarError as error:
                seat.trouble = Trouble("grammar_failed", str(error))
            self._charge(seat, (self._cpu_s() - began) * 1e3)
            seat.filled = True

    def _charge(self, seat: _Seat, cost_ms: float) -> None:
        budget, costs = self._budget, seat.costs_ms
        self.spent_ms += cost_ms
        costs.append(cost_ms)
        if len(costs) > budget.steps:
            costs.popleft()
        mean = sum(costs) / budget.steps
        if cost_ms > budget.single_ms:
            seat.trouble = Trouble(
                "grammar_too_slow", f"one mask took {cost_ms:.0f} ms; {budget.single_ms:.0f} are allowed"
            )
        elif mean > budget.mean_ms:
            seat.trouble = Trouble("grammar_too_slow", f"masks take {mean:.1f} ms; {budget.mean_ms:.0f} are allowed")
