"""Prometheus metrics: the gateway's own, and what the schedulers tell in their beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phloem_bus.presence import Peer

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """What the gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        p = "phloem_gateway_"
        self.registry = registry
        self.responses = Counter(p + "responses_total", "Answered calls.", ["endpoint", "status"], registry=registry)
        self.live = Gauge(p + "live_requests", "Requests between admission and their end.", registry=registry)
        self.prompt_tokens = Counter(p + "prompt_tokens_total", "Prompt tokens of ended requests.", registry=registry)
        self.cached_tokens = Counter(p + "cached_tokens_total", "Prompt tokens found in the cache.", registry=registry)
        self.completion_tokens = Counter(
            p + "completion_tokens_total", "Output tokens of ended requests.", registry=registry
        )
        self.first_token = Histogram(
            p + "time_to_first_token_seconds", "Arrival to first output.", buckets=_SECONDS, registry=registry
        )
        self.latency = Histogram(p + "request_seconds", "Arrival to end.", buckets=_SECONDS, registry=registry)
        self.cancelled = Counter(
            p + "cancelled_total", "Requests given up before their end.", ["reason"], registry=registry
        )
        self.reopened = Counter(p + "reopened_total", "Attempts after a request's first.", registry=registry)
        self.dropped = Gauge(
            p + "dropped_frames", "Output frames that changed nothing, by reason.", ["reason"], registry=registry
        )


class SchedulerLoad(Collector):
    """Gauges and counters from the beats of the schedulers present.

    Args:
        peers: called at each scrape.
    """

    def __init__(self, peers: Callable[[], Iterable[Peer]]) -> None:
        self._peers = peers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for peer in self._peers():
            self._gauges(families, peer)
            for name, value in sorted(peer.load.counters.items()):
                base = name.removesuffix("_total")
                family = families.setdefault(
                    base, CounterMetricFamily(base, "Total told by the scheduler.", labels=["instance"])
                )
                assert isinstance(family, CounterMetricFamily)
                family.add_metric([peer.instance], value)
        return families.values()

    def _gauges(self, families: dict[str, Metric], peer: Peer) -> None:
        load, p = peer.load, "phloem_scheduler_"
        plain = {
            "running_requests": load.running, "waiting_requests": load.waiting, "waiting_tokens": load.waiting_tokens,
            "live_requests": load.in_flight, "workers": load.workers, "grammars": load.grammars,
            "detokenisers": load.detokenisers, "leading": float(peer.term > 0), "pages_total": load.pages_total,
        }  # fmt: skip
        for name, value in plain.items():
            family = families.setdefault(
                p + name, GaugeMetricFamily(p + name, "Told by the scheduler.", labels=["instance"])
            )
            assert isinstance(family, GaugeMetricFamily)
            family.add_metric([peer.instance], value)
        pages = families.setdefault(
            p + "kv_pages", GaugeMetricFamily(p + "kv_pages", "KV pages by state.", labels=["instance", "state"])
        )
        assert isinstance(pages, GaugeMetricFamily)
        for state, value in (("free", load.pages_free), ("cached", load.pages_cached), ("used", load.pages_used)):
            pages.add_metric([peer.instance, state], value)
