"""What the core says of itself: in beats, and as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from phloem_bus.told import MOST
from phloem_proto.messages import Load

from .core import Core
from .worker import WorkerState

# Names that workers and grammar services tell; they have some twenty each.
MOST_NAMES = 256

COUNTED = {
    "requests": "Requests accepted",
    "rejected": "Requests refused",
    "choices_ended": "Choices that have ended, however",
    "prompt_tokens": "Known tokens of rows that were opened, replays included",
    "cached_tokens": "Those of them found in the radix tree: prefill tokens saved",
    "output_tokens": "Output tokens committed",
    "wasted_draws": "Draws for choices that had ended",
    "late_masks": "Draws that yielded nothing and ran again",
    "retractions": "Rows that gave up their pages",
    "preempted": "Rows that gave up their pages to a choice of much higher priority",
    "placed_only": "Choices that went to a worker because there was no other",
    "placed_prefix": "Choices that went where most of their prompt was cached",
    "placed_load": "Choices that went where least was to do",
    "placed_balance": "Choices that went elsewhere because the worker with most of their prompt had too much to do",
    "placed_room": "Choices that went elsewhere because better workers had no room",
    "steps": "Steps with a result",
    "failed_steps": "Steps that failed",
    "cancelled": "Requests their gateways gave up",
    "adopted": "Live requests opened again",
    "stale": "Messages of former attempts",
}


def load(core: Core, gateways: int, grammars: int, below: Iterable[Mapping[str, float]] = ()) -> Load:
    """How busy the scheduler is, and what each of so many gateways may ask of it.

    Args:
        core: whose state it is.
        gateways, grammars: how many are present.
        below: counters of its workers and grammar services; they are told on, added up, since gateways don't watch those.
    """
    workers = list(core.workers.values())
    slots = sum(worker.slots for worker in workers)
    shares = max(1, gateways)
    total = core.settings.max_queued + slots
    # While some wait, no more run than do: the free slots lack pages. Who were let in for them would be refused here, after tokenising.
    open_to = core.settings.max_queued + (min(slots, core.running) if core.waiting else slots)
    return Load(
        in_flight=core.life.live,
        capacity=total,
        running=core.running,
        waiting=core.waiting,
        waiting_tokens=core.queue.tokens,
        pages_free=sum(worker.cache.pool.free for worker in workers),
        pages_cached=sum(worker.cache.shelf.evictable_pages for worker in workers),
        pages_used=sum(map(pages_used, workers)),
        pages_total=sum(worker.cache.pool.total for worker in workers),
        workers=len(workers),
        credit_requests=max(1, open_to // shares),
        credit_bytes=max(1, core.settings.credit_bytes // shares),
        retry_after_ms=core.retry_after_ms(),
        counters=counters(core) | added_up(below),
        grammars=grammars,
        detokenisers=len(core.outbox.linked),
    )


def counters(core: Core) -> dict[str, float]:
    """What the core counts and holds, by Prometheus name."""
    totals = {f"phloem_scheduler_{name}_total": value for name, value, _ in totals_of(core)}
    return totals | {f"phloem_scheduler_{name}": float(read(core)) for name, (_, read) in GAUGES.items()}


def totals_of(core: Core) -> Iterator[tuple[str, float, str]]:
    """Name, value and meaning of everything that only grows."""
    for name, value in asdict(core.counters).items():
        yield name, float(value), COUNTED[name]
    yield "evicted_tokens", float(core.evicted_tokens), "Tokens whose KV was evicted to make room, or flushed"
    yield "pins_yielded", float(core.pins.yielded), "Leases that ended early because a request could not have run"


def added_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name, of the first so many names: whoever tells more must not make our beat too large, nor a number in it too large."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name in sums or len(sums) < MOST_NAMES:
                sums[name] = min(MOST, sums.get(name, 0.0) + value)
    return sums


WORKER_GAUGES: dict[str, tuple[str, Callable[[WorkerState], float]]] = {
    "pages": ("KV pages there are", lambda worker: worker.cache.pool.total),
    "pages_free": ("KV pages nobody owns", lambda worker: worker.cache.pool.free),
    "pages_held": ("KV pages that requests own", lambda worker: worker.cache.pool.held),
    "pages_cached": ("KV pages in the radix tree", lambda worker: worker.cache.shelf.total_pages),
    "pages_locked": (
        "KV pages in the radix tree that running requests read",
        lambda worker: worker.cache.shelf.locked_pages,
    ),
    "pages_pinned": ("KV pages that leases keep", lambda worker: worker.cache.shelf.pinned_pages),
    "rows": ("Sequences that have a slot", lambda worker: len(worker.rows)),
    "plans_in_flight": ("Plans sent that have no result", lambda worker: len(worker.plans)),
}


# Zero when nothing goes on, but for the ratio.
HELD_GAUGES: dict[str, tuple[str, Callable[[Core], float]]] = {
    "requests_live": (
        "Requests that no gateway has cancelled yet, ended ones included",
        lambda core: len(core.ledger.requests),
    ),
    "requests_running": ("Choices that have a slot", lambda core: core.running),
    "requests_waiting": ("Choices without a slot", lambda core: core.waiting),
    "pages_used": (
        "KV pages that running requests own or read",
        lambda core: sum(map(pages_used, core.workers.values())),
    ),
    "locks": (
        "Paths of the radix trees that are locked",
        lambda core: sum(w.cache.shelf.locks for w in core.workers.values()),
    ),
    "requests_waiting_queued": ("Choices in the queue", lambda core: len(core.queue)),
    "requests_waiting_prefix": (
        "Of them those whose prefix a running row is about to compute",
        lambda core: sum(map(followers, core.workers.values())),
    ),
    "requests_waiting_grammar": ("Requests whose grammar is being judged", lambda core: core.grammars.requests),
    "reserve_ratio": ("Share of running rows' output that is set aside", lambda core: core.planner.reserve.share),
}


# What is kept between requests.
CACHE_GAUGES: dict[str, tuple[str, Callable[[Core], float]]] = {
    "tree_nodes": ("Nodes of the radix tree", lambda core: core.tree.size),
    "tree_tokens": (
        "Tokens in the radix tree, each prefix counted once",
        lambda core: core.tree.pages * core.tree.page_size,
    ),
    "pins": ("Leases on prefixes", lambda core: len(core.pins)),
    "pages_pinned": (
        "KV pages that leases keep",
        lambda core: sum(worker.cache.shelf.pinned_pages for worker in core.workers.values()),
    ),
    "cached_tokens_ratio": (
        "Share of known tokens that were found in the radix tree since the start",
        lambda core: core.counters.cached_tokens / max(1, core.counters.prompt_tokens),
    ),
}


def pages_used(worker: WorkerState) -> int:
    """KV pages that running requests own or read."""
    return worker.cache.pool.held + worker.cache.shelf.locked_pages


def followers(worker: WorkerState) -> int:
    """Waiting choices that can't be picked before a row of worker has computed what they share with it."""
    tops = {
        node for row in worker.rows.values() if (node := worker.first_uncomputed(row)) is not None and not node.copies
    }
    return sum(node.wanted for node in tops)


GAUGES = HELD_GAUGES | CACHE_GAUGES


class CoreCollector(Collector):
    """Counters and gauges of the core that `current` returns, read when asked."""

    def __init__(self, current: Callable[[], Core]) -> None:
        self._current = current

    def collect(self) -> Iterator[Metric]:
        """Read everything as it is now."""
        core = self._current()
        for name, value, text in totals_of(core):
            yield CounterMetricFamily(f"phloem_scheduler_{name}", text, value=value)
        for name, (text, read) in GAUGES.items():
            yield GaugeMetricFamily(f"phloem_scheduler_{name}", text, value=read(core))
        yield from worker_metrics(core.workers.values())


WORKER_TOTALS: dict[str, tuple[str, Callable[[WorkerState], float]]] = {
    "placed": ("Choices placed on this worker since it joined", lambda worker: worker.traffic.choices),
    "placed_tokens": ("Their known tokens", lambda worker: worker.traffic.prompt_tokens),
    "placed_cached_tokens": ("Those of them found in its cache", lambda worker: worker.traffic.cached_tokens),
}


def worker_metrics(workers: Iterable[WorkerState]) -> Iterator[Metric]:
    """One metric for each quantity, labelled by worker."""
    there = list(workers)
    for name, (text, read) in WORKER_GAUGES.items():
        gauge = GaugeMetricFamily(f"phloem_scheduler_{name}", text, labels=["worker"])
        for worker in there:
            gauge.add_metric([worker.instance], read(worker))
        yield gauge
    for name, (text, read) in WORKER_TOTALS.items():
        total = CounterMetricFamily(f"phloem_scheduler_worker_{name}", text, labels=["worker"])
        for worker in there:
            total.add_metric([worker.instance], read(worker))
        yield total
