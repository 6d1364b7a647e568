"""A device's own time: marks between its operations, and how to learn that one has passed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")


class Timeline(Protocol):
    """Marks are opaque and belong to the timeline that made them."""

    @property
    def asynchronous(self) -> bool:
        """Whether operations are computed after the call that launches them has returned."""
        ...

    def mark(self) -> Any:
        """A mark behind everything that was launched so far."""
        ...

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached the mark."""
        ...

    def ms(self, earlier: Any, later: Any) -> float:
        """Device time between two marks that have passed."""
        ...

    def once_passed(self, mark: Any, read: Callable[[], T]) -> Future[T]:
        """The result of ``read``, called once the mark has passed. An error of the device becomes the future's."""
        ...

    def drain(self) -> None:
        """Wait until everything launched is done. Raises what the device raises."""
        ...

    def close(self) -> None:
        """End the timeline's thread, if it has one; a later use starts it again."""
        ...


class HostTimeline:
    """Of a device that computes at launch: the CPU."""

    asynchronous = False

    def mark(self) -> float:
        return time.perf_counter()

    def passed(self, mark: Any) -> bool:
        return True

    def ms(self, earlier: Any, later: Any) -> float:
        milliseconds: float = (later - earlier) * 1e3
        return milliseconds

    def once_passed(self, mark: Any, read: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(read())
        return future

    def drain(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """There is no thread."""


class CudaTimeline:
    """Of the current CUDA stream; marks are events. A thread waits for them, since waiting blocks."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiter = Waiter("phloem-cuda", lambda mark: mark.synchronize())

    def mark(self) -> torch.cuda.Event:
        # blocking: the waiting thread sleeps instead of spinning on a core that the other services need
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed(self, mark: Any) -> bool:
        passed: bool = mark.query()
        return passed

    def ms(self, earlier: Any, later: Any) -> float:
        milliseconds: float = earlier.elapsed_time(later)
        return milliseconds

    def once_passed(self, mark: Any, read: Callable[[], T]) -> Future[T]:
        return self._waiter.submit(mark, read)

    def drain(self) -> None:
        torch.cuda.synchronize(self._device)

    def close(self) -> None:
        self._waiter.close()


class Waiter:
    """A daemon thread that waits for one mark after the other, in the order of `submit`. Bounded by its callers: a few steps each.

    Args:
        name: of the thread.
        wait: blocks until a mark has passed; without the interpreter lock.
    """

    def __init__(self, name: str, wait: Callable[[Any], None]) -> None:
        self._name = name
        self._wait = wait
        self._work: queue.SimpleQueue[tuple[Any, Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, mark: Any, read: Callable[[], T]) -> Future[T]:
        """The result of ``read`` once ``mark`` has passed."""
        future: Future[T] = Future()
        self._work.put((mark, read, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """End the thread once what was submitted is done."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            mark, read, future = item
            try:
                self._wait(mark)
                future.set_result(read())
            except Exception as error:  # the device's, which belongs to whoever reads the step
                future.set_exception(error)
