"""Prometheus metrics: the gateway's own, and what schedulers and tokenizers tell in their beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phloem_bus.presence import Peer
from phloem_proto.subjects import Role

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """What the gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        p = "phloem_gateway_"
        self.registry = registry
        self.responses = Counter(p + "responses_total", "Answered calls.", ["endpoint", "status"], registry=registry)
        self.live = Gauge(p + "requests_live", "Requests between admission and their end.", registry=registry)
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


class PeerLoad(Collector):
    """Gauges and counters that schedulers and tokenizers tell in their beats, labelled by instance.

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
            told = dict(peer.load.counters)
            if peer.role is Role.SCHEDULER:
                told = _fields(peer) | told  # a name that is among both is one sample: scrapers refuse a page with two
            for name, value in sorted(told.items()):
                self._add(families, name, peer, value)
        return families.values()

    def _add(self, families: dict[str, Metric], name: str, peer: Peer, value: float) -> None:
        """Names that end in ``_total`` are counters, others gauges."""
        base = name.removesuffix("_total")
        text = f"Told by the {peer.role}."
        if base == name:
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=["instance"]))
        else:
            family = families.setdefault(base, CounterMetricFamily(base, text, labels=["instance"]))
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric([peer.instance], value)


def _fields(peer: Peer) -> dict[str, float]:
    """What a scheduler's beat says in fields of its own, by Prometheus name."""
    load = peer.load
    plain = {
        "requests_running": load.running, "requests_waiting": load.waiting, "tokens_waiting": load.waiting_tokens,
        "workers": load.workers, "grammars": load.grammars, "detokenisers": load.detokenisers,
        "leading": int(peer.term > 0), "pages": load.pages_total, "pages_free": load.pages_free,
        "pages_cached": load.pages_cached,
    }  # fmt: skip
    return {f"phloem_scheduler_{name}": value for name, value in plain.items()}
