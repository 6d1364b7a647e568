"""A small pool of daemon threads.

Not `concurrent.futures.ThreadPoolExecutor`: that one joins its threads when the interpreter ends, and a thread inside a grammar engine may
never come back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

T = TypeVar("T")


class Submit(Protocol):
    """Runs work somewhere else, or at once (tests, simulation)."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


class DaemonPool:
    """Up to ``most`` threads, started as needed; work beyond them waits in order.

    The queue is as long as callers make it: here at most one entry per slot.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __call__(self, work: Callable[[], T], /) -> Future[T]:
        """Run ``work`` in a thread of the pool."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # whatever it is belongs to whoever waits for the future
                future.set_exception(error)

        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._most:
                self._started += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put(run)
        return future

    def _serve(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._idle += 1


def run_inline(work: Callable[[], T], /) -> Future[T]:
    """A `Submit` that does the work before it returns."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future
