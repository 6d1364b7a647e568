"""Computing as a device made of this machine's cores does, without a model: a step is a fixed amount of work, and all threads are busy in it."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from statistics import median

PART = 400
"""Rounds after which a helper looks whether the step has ended: some 0.1 ms."""
SAMPLE = 5000
"""Rounds of which the speed is measured: some milliseconds."""
SAMPLES = 21


class Burner:
    """A team of threads that burns its cores, as the kernels' does. What it computes is one call without the interpreter's lock.

    The thread that calls `burn` does the work of a step; the others compute until it has done it. How much that is, is measured at the
    start with all threads busy, in the thread's own CPU time: whoever takes a core from it meanwhile changes nothing.

    Args:
        step_s: CPU time in seconds that the work of a step takes then.
        threads: how many burn, the caller among them.
    """

    def __init__(self, step_s: float, threads: int) -> None:
        self._step = 0
        self._burning = 0
        """The step that is computed; 0 = none."""
        self._inboxes: list[queue.SimpleQueue[int | None]] = [queue.SimpleQueue() for _ in range(threads - 1)]
        self._helpers = [
            threading.Thread(target=self._help, args=(inbox,), name=f"phloem-burner-{number}", daemon=True)
            for number, inbox in enumerate(self._inboxes, 1)
        ]
        for helper in self._helpers:
            helper.start()
        self._rounds = max(1, round(step_s / self._round_s()))

    @property
    def threads(self) -> int:
        """How many burn."""
        return 1 + len(self._helpers)

    def burn(self) -> None:
        """Compute a step."""
        self._together(self._rounds)

    def close(self) -> None:
        """End the helpers."""
        for inbox in self._inboxes:
            inbox.put(None)
        for helper in self._helpers:
            helper.join()

    def _round_s(self) -> float:
        """CPU time of a round, the median of some samples."""
        return median(self._sample_s() for _ in range(SAMPLES)) / SAMPLE

    def _sample_s(self) -> float:
        began = time.thread_time()
        self._together(SAMPLE)
        return time.thread_time() - began

    def _together(self, rounds: int) -> None:
        self._step += 1
        self._burning = self._step
        for inbox in self._inboxes:
            inbox.put(self._step)
        _compute(rounds)
        self._burning = 0

    def _help(self, inbox: queue.SimpleQueue[int | None]) -> None:
        while (step := inbox.get()) is not None:
            while self._burning == step:
                _compute(PART)


def _compute(rounds: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"phloem", b"stand-in", rounds)
