"""The order in which plans are begun, drawn and finished. No thread of its own: whoever owns it turns it.

On a device that computes by itself two steps are launched: while one runs, the next lies ready behind it, so that the device goes from one to
the other without waiting for the host. A device that computes at launch gains nothing from that, and its results would come a step later:
there a step is finished before the next begins.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from phloem_proto.messages import Plan, Result, StepFailed

from .core import WorkerCore
from .errors import BadPlan
from .launched import Launched

_log = logging.getLogger("phloem.worker")

AHEAD = 2
"""Steps that are launched at once: one runs, one lies ready. A third would only make closes and opens later."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """All plans before this reset are done or dropped; slots and matchers are empty."""

    session: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a plan of this session."""

    session: int
    message: Result | StepFailed
    rids: Sequence[bytes] = ()
    """Requests that the plan's rows belong to; fewer if it does not fit."""


Report = Done | Emptied
"""What comes out: what became of a plan, or the answer to a reset."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop everything and begin this session."""

    session: int


@dataclass(frozen=True, slots=True)
class Order:
    """A plan of a session."""

    session: int
    plan: Plan


class Turn(Enum):
    """What a turn without a report came to."""

    MOVED = "moved"
    BLOCKED = "blocked"
    """Nothing to do until another order comes or a launched step is done."""


class Pipeline:
    """Orders in, reports out, in the orders' sequence.

    Args:
        core: what carries them out.
        wake: called from any thread when a launched step is done.
        launching: called within `turn` when all is ready for a forward pass.
    """

    def __init__(
        self, core: WorkerCore, wake: Callable[[], None] = lambda: None, launching: Callable[[], None] = lambda: None
    ) -> None:
        self._core = core
        self._wake = wake
        self._launching = launching
        self._most = AHEAD if core.runner.asynchronous else 1
        self._orders: deque[Order | Reset] = deque()
        self._steps: deque[Launched | Done] = deque()
        """Launched and not reported; a failure to begin waits here for the steps before it."""
        self._session = 0
        self._failed = False

    def __len__(self) -> int:
        """Orders that wait. Bounded by whoever calls `take`."""
        return len(self._orders)

    def take(self, order: Order | Reset) -> None:
        """Put an order in line. A reset drops the plans that wait."""
        if isinstance(order, Reset):
            self._orders = deque(waiting for waiting in self._orders if isinstance(waiting, Reset))
        self._orders.append(order)

    def turn(self, *, wait: bool = False) -> Report | Turn:
        """Do the most urgent thing: keep the device busy, then draw, then read.

        Args:
            wait: for a launched step rather than return `Turn.BLOCKED`.

        Raises:
            Exception: the device can't even be emptied.
        """
        order = self._next()
        if isinstance(order, Reset):
            self._orders.popleft()
            return self._reset(order.session)
        if order is not None and len(self._steps) < self._most and self._begin(order.plan):
            self._orders.popleft()
            return Turn.MOVED
        if not self._steps:
            return Turn.BLOCKED
        first = self._steps[0]
        if isinstance(first, Done):
            self._steps.popleft()
            return first
        if not first.drawn:
            return self._draw(first)
        return self._finish(first) if wait or first.done else Turn.BLOCKED

    def close(self) -> None:
        """Let what is launched end; then the model may go away."""
        self._core.runner.drain()
        self._core.runner.close()

    def _next(self) -> Order | Reset | None:
        """The order in front, without plans of a session that failed or is over."""
        while self._orders:
            order = self._orders[0]
            if isinstance(order, Reset) or (order.session == self._session and not self._failed):
                return order
            self._orders.popleft()
        return None

    def _reset(self, session: int) -> Emptied:
        self._core.reset()
        self._steps.clear()
        self._session, self._failed = session, False
        return Emptied(session)

    def _begin(self, plan: Plan) -> bool:
        """Begin a plan; False if it has to wait for a result."""
        try:
            if not self._core.may_begin(plan):
                return False
            step = self._core.begin(plan, self._launching)
        except Exception as error:
            self._steps.append(self._failed_with(plan.step, error, self._core.whose(plan)))
        else:
            self._steps.append(step)
            self._call_when_done(step)
        return True

    def _draw(self, step: Launched) -> Report | Turn:
        try:
            self._core.draw(step)
        except Exception as error:
            return self._void(step, error)
        self._call_when_done(step)
        return Turn.MOVED

    def _finish(self, step: Launched) -> Report:
        try:
            result = self._core.finish(step)
        except Exception as error:
            return self._void(step, error)
        self._steps.popleft()
        return Done(self._session, result, step.rids.tolist())

    def _void(self, step: Launched, error: Exception) -> Report:
        """The session ends with this step; those launched behind it come to nothing."""
        self._steps.clear()
        return self._failed_with(step.number, error, step.rids.tolist())

    def _failed_with(self, number: int, error: Exception, rids: Sequence[bytes]) -> Done:
        """Out of memory, a kernel's error, a plan that does not fit: the session is over, the process is not."""
        self._failed = True
        if isinstance(error, BadPlan):
            _log.error("plan %d does not fit: %s", number, error)
            return Done(self._session, StepFailed(number, str(error)), rids)
        _log.error("step %d failed", number, exc_info=error)
        return Done(self._session, StepFailed(number, f"the step failed ({type(error).__name__})"), rids)

    def _call_when_done(self, step: Launched) -> None:
        if step.pending is not None and not step.pending.done():
            step.pending.add_done_callback(lambda _: self._wake())
