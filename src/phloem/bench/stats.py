"""Statistics of a run, as pure functions of its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import fmean, median

from .record import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread over a run. All in the unit of the values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the load generator itself was behind; figures of a run with a large lag are those of the generator."""

    loop_p99_ms: float
    """By how much a 10 ms sleep of the generator overshot, 99th percentile: an upper bound for the error of arrival times."""
    loop_max_ms: float
    send_p99_ms: float
    """How much later than planned requests were sent (open loop), 99th percentile; 0 in a closed loop."""
    cpu_share: float
    """CPU time of the generator per wall time; near 1 it is the bottleneck."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in figures. Times in milliseconds over requests that went well, rates per second of the whole run."""

    requests: int
    succeeded: int
    failures: dict[str, int]
    """Failed requests by kind, most frequent first."""
    duration_s: float
    """From the first request sent to the last reply."""
    ttft_ms: Spread | None
    """Time to the first output (streamed only)."""
    tpot_ms: Spread | None
    """(last output - first output) / (output tokens - 1), per request."""
    itl_ms: Spread | None
    """Gaps between pieces of output, over all requests."""
    latency_ms: Spread | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    counted: bool
    """All token counts are the server's own."""
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    cached_share: float | None
    """Cached tokens per input token; None without counts."""
    concurrency: float
    """Mean number of requests in flight."""
    lag: Lag


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0-1) of ``ordered`` (ascending, not empty) lies, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    low, high = floor(place), ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of ``values``; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ordered), fmean(ordered), p50, p90, p99, ordered[0], ordered[-1])


def lag(loop_s: Iterable[float], records: Iterable[Record], cpu_s: float, wall_s: float) -> Lag:
    """The generator's lag.

    Args:
        loop_s: overshoots of its regular sleeps, seconds.
        records: of the run, for planned and true send times.
        cpu_s, wall_s: CPU and wall time of the run, seconds.
    """
    loop = spread(loop_s)
    sent = spread(max(0.0, one.start_s - one.planned_s) for one in records if one.planned_s is not None)
    return Lag(
        loop_p99_ms=loop.p99 * 1e3 if loop else 0.0,
        loop_max_ms=loop.most * 1e3 if loop else 0.0,
        send_p99_ms=sent.p99 * 1e3 if sent else 0.0,
        cpu_share=cpu_s / wall_s if wall_s > 0 else 0.0,
    )


def summarize(records: Sequence[Record], generator: Lag) -> Summary:
    """All figures of one run. Raises ``ValueError`` when there are no records."""
    if not records:
        raise ValueError("a run without requests has no figures")
    good = [one for one in records if one.ok]
    duration = max(one.end_s for one in records) - min(one.start_s for one in records)
    inputs, outputs = sum(one.input_tokens for one in good), sum(one.output_tokens for one in good)
    cached = sum(one.cached_tokens for one in good)

    def rate(amount: float) -> float:
        return amount / duration if duration > 0 else 0.0

    return Summary(
        requests=len(records),
        succeeded=len(good),
        failures=dict(Counter(one.failure for one in records if not one.ok).most_common()),
        duration_s=duration,
        ttft_ms=spread(times(good, ttft_ms)),
        tpot_ms=spread(times(good, tpot_ms)),
        itl_ms=spread(gap * 1e3 for one in good for gap in one.gaps_s),
        latency_ms=spread(times(good, latency_ms)),
        input_tokens=inputs,
        cached_tokens=cached,
        output_tokens=outputs,
        counted=all(one.counted for one in good),
        requests_per_s=rate(len(good)),
        input_tokens_per_s=rate(inputs),
        output_tokens_per_s=rate(outputs),
        total_tokens_per_s=rate(inputs + outputs),
        cached_share=cached / inputs if inputs else None,
        concurrency=rate(sum(one.end_s - one.start_s for one in records)),
        lag=generator,
    )


def times(records: Iterable[Record], of: Callable[[Record], float | None]) -> list[float]:
    """What ``of`` says of each record that went well and has it."""
    return [found for one in records if one.ok and (found := of(one)) is not None]


def ttft_ms(record: Record) -> float | None:
    """Time to the first output; None if it was not streamed."""
    return None if record.first_s is None else (record.first_s - record.start_s) * 1e3


def latency_ms(record: Record) -> float:
    """From sending to the end of the reply."""
    return (record.end_s - record.start_s) * 1e3


def tpot_ms(record: Record) -> float | None:
    """(last output - first output) / (output tokens - 1); None if it was not streamed, or has less than two tokens."""
    if record.first_s is None or record.last_s is None or record.output_tokens < 2:
        return None
    return (record.last_s - record.first_s) * 1e3 / (record.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One metric of B per that of A, over rounds in which both ran the same workload."""

    median: float
    least: float
    most: float
    rounds: int


METRICS = (
    *(f"{name}_ms.{part}" for name in ("ttft", "tpot", "itl", "latency") for part in ("mean", "p50", "p90", "p99")),
    "duration_s",
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "cached_share",
)
"""What is compared, by the names used in JSON files."""


def value(summary: Summary, metric: str) -> float | None:
    """One of `METRICS` of a summary; None if the run has none."""
    name, _, part = metric.partition(".")
    found = getattr(summary, name)
    if part and found is not None:
        found = getattr(found, part)
    return None if found is None else float(found)


def compare(pairs: Sequence[tuple[Summary, Summary]]) -> dict[str, Ratio]:
    """B / A per metric: the ratio within each round, then the median over rounds.

    Metrics that one side lacks, or that are 0 in A, are left out.
    """
    compared: dict[str, Ratio] = {}
    for metric in METRICS:
        found = [one for one in ratios(pairs, metric) if one is not None]
        if found:
            compared[metric] = Ratio(median(found), min(found), max(found), len(found))
    return compared


def ratios(pairs: Sequence[tuple[Summary, Summary]], metric: str) -> list[float | None]:
    """B / A within each round; None where one side lacks the metric, or it is 0 in A."""
    both = [(value(a, metric), value(b, metric)) for a, b in pairs]
    return [b / a if a and b is not None else None for a, b in both]


def medians(summaries: Sequence[Summary]) -> dict[str, float]:
    """Per metric the median over rounds."""
    found = {metric: [got for one in summaries if (got := value(one, metric)) is not None] for metric in METRICS}
    return {metric: median(values) for metric, values in found.items() if values}
