"""What the worker counts, for Prometheus and for its beats."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from phloem_proto.messages import Result

from .core import WorkerCore

_HELP = {
    "steps": "Plans carried out",
    "failed_steps": "Plans that could not be carried out",
    "tokens": "Tokens drawn",
    "failed_rows": "Sequences that could not go on",
    "forward_seconds": "Time the device computed",
    "idle_seconds": "Time the device did nothing while there were sequences",
    "mask_seconds": "CPU time of grammar masks",
}


class Totals(Collector):
    """Monotonic totals over all sessions, and what is live now."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core
        self._values = dict.fromkeys(_HELP, 0.0)

    def add(self, result: Result) -> None:
        """Count one result."""
        values = self._values
        values["steps"] += 1
        values["tokens"] += len(result.ids) // 4
        values["failed_rows"] += len(result.failures)
        values["forward_seconds"] += result.forward_ms / 1e3
        values["idle_seconds"] += result.idle_ms / 1e3
        values["mask_seconds"] += result.mask_ms / 1e3

    def add_failed(self) -> None:
        """Count a step that failed."""
        self._values["failed_steps"] += 1

    def counters(self) -> dict[str, float]:
        """By Prometheus name, for `Load.counters`."""
        totals = {f"phloem_worker_{name}_total": value for name, value in self._values.items()}
        return totals | {f"phloem_worker_{name}": float(value) for name, value in self._live().items()}

    def _live(self) -> dict[str, int]:
        return {"slots_live": self._core.live, "matchers_live": 0 if self._core.desk is None else len(self._core.desk)}

    def collect(self) -> Iterable[Metric]:
        for name, value in self._values.items():
            yield CounterMetricFamily(f"phloem_worker_{name}", _HELP[name], value=value)
        live = self._live()
        yield GaugeMetricFamily("phloem_worker_slots_live", "Sequences in slots", value=live["slots_live"])
        yield GaugeMetricFamily("phloem_worker_matchers_live", "Grammar matchers held", value=live["matchers_live"])
