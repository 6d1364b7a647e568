"""Where plans are carried out: one thread of its own, so that a plan begins with no turn of the event loop between.

The event loop puts plans in and is woken through a socket when reports are there: neither side ever waits for the other.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from phloem_bus.service import Offload
from phloem_proto.messages import Plan

from .core import WorkerCore
from .errors import WorkerError
from .pipeline import Order, Pipeline, Report, Reset, Turn

MOST_PLANS = 64
"""Plans that may wait: a scheduler keeps two or three in flight, so more is a broken peer."""


class TooManyPlans(WorkerError):
    """Raised when a scheduler sends plans without waiting for results."""


class Device(Protocol):
    """Carries out plans in order."""

    def submit(self, session: int, plan: Plan) -> None:
        """Queue a plan. Plans of a session that failed or was replaced are dropped. Raises `TooManyPlans`."""
        ...

    def reset(self, session: int) -> None:
        """Drop plans, empty all slots once the device is done with what is launched, then report `Emptied`; ``session`` begins."""
        ...

    async def run(self, report: Callable[[Report], None]) -> None:
        """Work, and call ``report`` in the event loop in order, until cancelled. Raises if the device can't be used any more."""
        ...


class _Signal:
    """Something in the device's inbox that is no order."""


_DONE, _STOP = _Signal(), _Signal()


class ThreadDevice:
    """The device in production: a daemon thread, since a step can't be interrupted."""

    def __init__(self, core: WorkerCore) -> None:
        self._inbox: queue.SimpleQueue[Order | Reset | _Signal] = queue.SimpleQueue()
        self._pipeline = Pipeline(core, lambda: self._inbox.put(_DONE), self._tell)
        self._computes_at_launch = not core.runner.asynchronous
        self._reports: deque[Report] = deque()
        self._untold = False
        self._broken: Exception | None = None
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def submit(self, session: int, plan: Plan) -> None:
        if len(self._pipeline) + self._inbox.qsize() >= MOST_PLANS:
            raise TooManyPlans(f"more than {MOST_PLANS} plans wait")
        self._inbox.put(Order(session, plan))

    def reset(self, session: int) -> None:
        self._inbox.put(Reset(session))

    async def run(self, report: Callable[[Report], None]) -> None:
        thread = threading.Thread(target=self._serve, name="phloem-device", daemon=True)
        thread.start()
        try:
            while self._broken is None:
                await anyio.wait_readable(self._ours)
                self._ours.recv(4096)
                while self._reports:
                    report(self._reports.popleft())
            raise self._broken
        finally:
            self._inbox.put(_STOP)
            # The step that is running ends by itself; whoever stops the event loop must not pull the model away under it.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(thread.join)
            self._ours.close()
            self._theirs.close()

    def _serve(self) -> None:
        try:
            done: Report | Turn = Turn.BLOCKED
            while self._take_in(block=done is Turn.BLOCKED):
                done = self._pipeline.turn()
                if not isinstance(done, Turn):
                    self._reports.append(done)
                    self._untold = True
                if not (self._computes_at_launch and len(self._pipeline)):
                    self._tell()
            self._pipeline.close()
        except Exception as error:  # nobody else would see it
            self._broken = error
            self._wake()

    def _take_in(self, block: bool) -> bool:
        """Take what is in the inbox; wait for something first if ``block``. False = stop."""
        while block or not self._inbox.empty():
            item = self._inbox.get()
            if item is _STOP:
                return False
            if not isinstance(item, _Signal):
                self._pipeline.take(item)
            block = False
        return True

    def _tell(self) -> None:
        """Have the event loop take the reports.

        Where a step is computed as it is launched, this waits until the next one is ready for that: the loop's work then goes on beside the
        kernels, and not in this thread's way, with which it shares the interpreter.
        """
        if self._untold:
            self._untold = False
            self._wake()

    def _wake(self) -> None:
        try:
            self._theirs.send(b"\0")
        except BlockingIOError:
            pass  # thousands of wake-ups are unread already


class OffloadDevice:
    """The device of the simulation: turns through the injected `Offload`, so that they run inline with a seeded delay."""

    def __init__(self, core: WorkerCore, offload: Offload) -> None:
        self._inbox: queue.SimpleQueue[Order | Reset] = queue.SimpleQueue()
        self._pipeline = Pipeline(core)
        self._offload = offload
        self._wanted = anyio.Event()

    def submit(self, session: int, plan: Plan) -> None:
        if len(self._pipeline) + self._inbox.qsize() >= MOST_PLANS:
            raise TooManyPlans(f"more than {MOST_PLANS} plans wait")
        self._put(Order(session, plan))

    def reset(self, session: int) -> None:
        self._put(Reset(session))

    async def run(self, report: Callable[[Report], None]) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                while (done := await self._offload(self._next_report)) is not None:
                    report(done)
        finally:
            self._pipeline.close()

    def _next_report(self) -> Report | None:
        """Turn until something is to be reported; None when there is nothing left to do."""
        while True:
            while not self._inbox.empty():
                self._pipeline.take(self._inbox.get())
            done = self._pipeline.turn(wait=True)
            if not isinstance(done, Turn):
                return done
            if done is Turn.BLOCKED:
                return None

    def _put(self, order: Order | Reset) -> None:
        self._inbox.put(order)
        self._wanted.set()
