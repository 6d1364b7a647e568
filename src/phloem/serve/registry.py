"""One page of metrics for services that share a process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric


class SharedRegistry(CollectorRegistry):
    """A registry whose collectors may use the same names: their samples appear under one heading, as the format demands."""

    def collect(self) -> Iterable[Metric]:
        """All metrics, those of one name joined, in order of first appearance."""
        joined: dict[str, Metric] = {}
        for metric in super().collect():
            known = joined.setdefault(metric.name, metric)
            if known is not metric:
                known.samples.extend(metric.samples)
        return joined.values()
