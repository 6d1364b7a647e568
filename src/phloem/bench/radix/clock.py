"""Times single calls, and notes garbage collections apart from them."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..stats import percentile

P = ParamSpec("P")
T = TypeVar("T")

EMPTY_SAMPLES = 1001


@dataclass(frozen=True, slots=True)
class Figure:
    """How long a call took: microseconds of this thread's CPU time, without garbage collections, which are noted beside."""

    samples: int
    p50_us: float
    p99_us: float
    most_us: float
    collections: int
    """Garbage collections that fell into the samples."""
    longest_collection_us: float


class Clock:
    """This thread's CPU time: what is timed never waits, so a busy neighbour must not show. Knows of collections while it is entered."""

    def __init__(self) -> None:
        self.collections: array[int] = array("q")  # how long each took, in ns
        self._began = 0
        self.own_ns = self._own_ns()

    def __enter__(self) -> Clock:
        gc.callbacks.append(self._collection)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time_ns()
        else:
            self.collections.append(time.thread_time_ns() - self._began)

    @staticmethod
    def _own_ns() -> int:
        """What it costs to read the clock twice: taken off each sample."""
        samples = []
        for _ in range(EMPTY_SAMPLES):
            start = time.thread_time_ns()
            samples.append(time.thread_time_ns() - start)
        return sorted(samples)[EMPTY_SAMPLES // 2]


class Stopwatch:
    """Samples of one operation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: array[int] = array("q")
        self._collections: array[int] = array("q")

    def time(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``work`` and note how long it took."""
        collections = self._clock.collections
        before = len(collections)
        start = time.thread_time_ns()
        result = work(*args, **kwargs)
        elapsed = time.thread_time_ns() - start
        during = collections[before:]
        self._samples.append(max(0, elapsed - sum(during) - self._clock.own_ns))
        self._collections.extend(during)
        return result

    def figure(self, parts: int = 1) -> Figure | None:
        """What was noted; None without samples. parts: how many equal parts a call has, to tell the time of one."""
        ordered = sorted(self._samples)
        if not ordered:
            return None
        scale = 1e3 * parts
        longest = max(self._collections, default=0) / 1e3
        return Figure(
            len(ordered),
            percentile(ordered, 0.5) / scale,
            percentile(ordered, 0.99) / scale,
            ordered[-1] / scale,
            len(self._collections),
            longest,
        )

    @property
    def total_us(self) -> float:
        """All samples together."""
        return sum(self._samples) / 1e3

    def __len__(self) -> int:
        return len(self._samples)
