"""Where plans are carried out: one thread of its own, so that plan n + 1 starts right after n with no turn of the event loop between.

The event loop puts plans in and is woken through a socket when reports are there: neither side ever waits for the other.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import msgspec

from phloem_bus.service import Offload
from phloem_proto.messages import Plan, Result, StepFailed

from .core import WorkerCore
from .errors import BadPlan, WorkerError

_log = logging.getLogger("phloem.worker")

MOST_PLANS = 64
"""Plans that may wait: a scheduler keeps two or three in flight, so more is a broken peer."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """All plans before this reset are done or dropped; slots and matchers are empty."""

    session: int


Report = tuple[int, Result | StepFailed] | Emptied
"""What comes out: a session's result or failure, or the answer to a reset."""


class TooManyPlans(WorkerError):
    """Raised when a scheduler sends plans without waiting for results."""


class Device(Protocol):
    """Carries out plans in order."""

    def submit(self, session: int, plan: Plan) -> None:
        """Queue a plan. Plans of a session that failed or was replaced are dropped. Raises `TooManyPlans`."""
        ...

    def reset(self, session: int) -> None:
        """Drop queued plans, empty all slots once the running step is done, then report `Emptied`; ``session`` begins."""
        ...

    async def run(self, report: Callable[[Report], None]) -> None:
        """Work, and call ``report`` in the event loop in order, until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class _Reset:
    session: int


@dataclass(slots=True)
class Stepper:
    """What both kinds of device do with one piece of work. Runs where the core runs."""

    core: WorkerCore
    session: int = 0
    failed: bool = False
    idle_since: float | None = None

    def work(self, item: _Reset | tuple[int, Plan]) -> Report | None:
        """Carry out a plan or a reset; None for a plan of another or a failed session."""
        if isinstance(item, _Reset):
            self.core.reset()
            self.session, self.failed, self.idle_since = item.session, False, None
            return Emptied(item.session)
        session, plan = item
        if session != self.session or self.failed:
            return None
        return session, self._step(plan)

    def _step(self, plan: Plan) -> Result | StepFailed:
        began = time.perf_counter()
        idle_ms = 0.0 if self.idle_since is None else (began - self.idle_since) * 1e3
        try:
            result = self.core.execute(plan)
        except BadPlan as error:
            self.failed = True
            _log.error("plan %d does not fit: %s", plan.step, error)
            return StepFailed(plan.step, str(error))
        except Exception as error:  # out of memory, a kernel's error: the session is over, the process is not
            self.failed = True
            _log.exception("step %d failed", plan.step)
            return StepFailed(plan.step, f"the step failed ({type(error).__name__})")
        self.idle_since = time.perf_counter()
        return msgspec.structs.replace(result, forward_ms=(self.idle_since - began) * 1e3, idle_ms=idle_ms)


class ThreadDevice:
    """The device in production: a daemon thread, since a step can't be interrupted."""

    def __init__(self, core: WorkerCore) -> None:
        self._stepper = Stepper(core)
        self._work: queue.Queue[_Reset | tuple[int, Plan] | None] = queue.Queue()
        self._reports: deque[Report] = deque()
        self._current = 0
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def submit(self, session: int, plan: Plan) -> None:
        if self._work.qsize() >= MOST_PLANS:
            raise TooManyPlans(f"more than {MOST_PLANS} plans wait")
        self._work.put((session, plan))

    def reset(self, session: int) -> None:
        self._current = session
        self._work.put(_Reset(session))

    async def run(self, report: Callable[[Report], None]) -> None:
        thread = threading.Thread(target=self._serve, name="phloem-device", daemon=True)
        thread.start()
        try:
            while True:
                await anyio.wait_readable(self._ours)
                self._ours.recv(4096)
                while self._reports:
                    report(self._reports.popleft())
        finally:
            self._work.put(None)
            # The step that is running ends by itself; whoever stops the event loop must not pull the model away under it.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(thread.join)
            self._ours.close()
            self._theirs.close()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            if isinstance(item, tuple) and item[0] != self._current:
                continue
            done = self._stepper.work(item)
            if done is not None:
                self._reports.append(done)
                self._wake()

    def _wake(self) -> None:
        try:
            self._theirs.send(b"\0")
        except BlockingIOError:
            pass  # thousands of wake-ups are unread already


class OffloadDevice:
    """The device of the simulation: each step through the injected `Offload`, so that it runs inline with a seeded delay."""

    def __init__(self, core: WorkerCore, offload: Offload) -> None:
        self._stepper = Stepper(core)
        self._offload = offload
        self._work: deque[_Reset | tuple[int, Plan]] = deque()
        self._wanted = anyio.Event()
        self._current = 0

    def submit(self, session: int, plan: Plan) -> None:
        if len(self._work) >= MOST_PLANS:
            raise TooManyPlans(f"more than {MOST_PLANS} plans wait")
        self._put((session, plan))

    def reset(self, session: int) -> None:
        self._current = session
        self._put(_Reset(session))

    async def run(self, report: Callable[[Report], None]) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._work:
                item = self._work.popleft()
                if isinstance(item, tuple) and item[0] != self._current:
                    continue
                done = await self._offload(lambda item=item: self._stepper.work(item))  # type: ignore[misc]
                if done is not None:
                    report(done)

    def _put(self, item: _Reset | tuple[int, Plan]) -> None:
        self._work.append(item)
        self._wanted.set()
