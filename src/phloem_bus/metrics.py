"""What the bus counts, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .node import Node


class NodeCollector(Collector):
    """Counters of a node: ``phloem_bus_refused_total``, ``phloem_bus_dropped_total``, ``phloem_bus_violations_total``,
    and ``phloem_bus_connected``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Read the counters as they are now."""
        role = self._node.role.value
        refused = CounterMetricFamily("phloem_bus_refused", "Messages not taken, by reason", labels=["role", "reason"])
        for reason, count in sorted(self._node.refused.items()):
            refused.add_metric([role, reason], count)
        dropped = CounterMetricFamily(
            "phloem_bus_dropped", "Messages that came faster than they were taken", labels=["role"]
        )
        dropped.add_metric([role], self._node.dropped)
        violations = CounterMetricFamily(
            "phloem_bus_violations", "What the broker did not let us send or receive", labels=["role"]
        )
        violations.add_metric([role], self._node.bus.violations)
        connected = GaugeMetricFamily("phloem_bus_connected", "1 while there is a connection", labels=["role"])
        connected.add_metric([role], float(self._node.bus.connected))
        yield from (refused, dropped, violations, connected)


class TaskCollector(Collector):
    """``phloem_bus_tasks``: tasks of an event loop, which must be back where they were whenever nothing goes on.

    Args:
        loop: may run in another thread than the one that collects.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Count them."""
        yield GaugeMetricFamily("phloem_bus_tasks", "Tasks of the event loop", value=len(asyncio.all_tasks(self._loop)))
