"""How long passes of the loop take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

# A pass is a part of each step: tens of microseconds to a few milliseconds. Above 20 ms a device may run dry.
BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class Passes(Collector):
    """A histogram and the longest one."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._times = Histogram(
            "phloem_scheduler_pass_seconds", "Time of one pass of the loop", buckets=BUCKETS, registry=None
        )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """One pass."""
        start = perf_counter()
        yield
        took = perf_counter() - start
        self._times.observe(took)
        self.longest_s = max(self.longest_s, took)

    def counters(self) -> dict[str, float]:
        """What a beat tells of it."""
        return {"phloem_scheduler_pass_seconds_max": self.longest_s}

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        yield from self._times.collect()
        yield GaugeMetricFamily("phloem_scheduler_pass_seconds_max", "Longest pass since the start", self.longest_s)
