"""Figures are pure functions of records: each is checked against numbers worked out by hand."""

from __future__ import annotations

import pytest

from phloem.bench.record import Record
from phloem.bench.stats import METRICS, Lag, Summary, compare, lag, medians, percentile, spread, summarize, value

QUIET = Lag(0.0, 0.0, 0.0, 0.0)


def record(index: int, start: float, first: float | None, last: float | None, end: float, **more: object) -> Record:
    fields: dict[str, object] = {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "counted": True} | more
    return Record(index, start_s=start, first_s=first, last_s=last, end_s=end, **fields)  # type: ignore[arg-type]


def test_percentiles_interpolate_between_neighbours() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([0.0, 10.0], 0.5) == 5.0
    assert percentile([0.0, 1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.6)


def test_spread_of_unordered_values() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.least, found.most) == (4, 2.5, 2.5, 1.0, 4.0)
    assert spread([]) is None


def test_summary_of_two_overlapping_requests() -> None:
    records = [
        record(0, 0.0, 0.1, 0.5, 0.5, gaps_s=[0.1, 0.1, 0.1, 0.1]),
        record(1, 1.0, 1.3, 1.5, 2.0, gaps_s=[0.05, 0.15], output_tokens=3),
    ]
    summary = summarize(records, QUIET)
    assert summary.duration_s == 2.0
    assert summary.ttft_ms is not None
    assert summary.ttft_ms.mean == pytest.approx(200)
    assert summary.tpot_ms is not None
    assert (summary.tpot_ms.least, summary.tpot_ms.most) == pytest.approx((100, 100))
    assert summary.itl_ms is not None
    assert (summary.itl_ms.count, summary.itl_ms.most) == pytest.approx((6, 150))
    assert summary.latency_ms is not None
    assert summary.latency_ms.most == pytest.approx(1000)
    assert (summary.input_tokens_per_s, summary.output_tokens_per_s, summary.total_tokens_per_s) == (10.0, 4.0, 14.0)
    assert summary.cached_share == pytest.approx(0.4)
    assert summary.concurrency == pytest.approx(0.75)


def test_failed_requests_are_counted_by_kind_and_leave_the_figures_alone() -> None:
    records = [
        record(0, 0.0, 0.1, 0.2, 0.2),
        record(1, 0.0, None, None, 9.0, failure="timeout"),
        record(2, 0, None, None, 1),
    ]
    records[2].fail("http_429", "x" * 500)
    records[2].fail("empty")
    summary = summarize(records, QUIET)
    assert (summary.requests, summary.succeeded) == (3, 1)
    assert summary.failures == {"timeout": 1, "http_429": 1}
    assert len(records[2].detail) == 200
    assert summary.latency_ms is not None
    assert summary.latency_ms.most == pytest.approx(200)
    assert summary.duration_s == 9.0


def test_one_token_and_unstreamed_answers_have_no_time_per_token() -> None:
    summary = summarize([record(0, 0.0, 0.1, 0.1, 0.1, output_tokens=1), record(1, 0.0, None, None, 0.3)], QUIET)
    assert summary.tpot_ms is None
    assert summary.itl_ms is None
    assert summary.ttft_ms is not None
    assert summary.ttft_ms.count == 1


def test_a_run_in_which_everything_failed_still_has_a_summary() -> None:
    summary = summarize([record(0, 0.0, None, None, 0.0, failure="connect", input_tokens=0, output_tokens=0)], QUIET)
    assert (summary.succeeded, summary.output_tokens_per_s, summary.cached_share, summary.latency_ms) == (
        0,
        0.0,
        None,
        None,
    )
    with pytest.raises(ValueError, match="without requests"):
        summarize([], QUIET)


def test_lag_takes_only_planned_requests_and_never_counts_early_ones() -> None:
    records = [Record(0, planned_s=1.0, start_s=1.004), Record(1, planned_s=2.0, start_s=1.99), Record(2, start_s=50.0)]
    found = lag([0.001] * 50, records, cpu_s=1.0, wall_s=4.0)
    assert (found.loop_p99_ms, found.cpu_share) == pytest.approx((1.0, 0.25))
    assert found.send_p99_ms == pytest.approx(4.0, rel=0.02)
    assert lag([], [], 0.0, 0.0) == QUIET


def summary_with(latency_s: float, cached: int = 0) -> Summary:
    return summarize([record(0, 0.0, latency_s / 2, latency_s, latency_s, cached_tokens=cached)], QUIET)


def test_ratios_are_medians_of_paired_rounds() -> None:
    pairs = [
        (summary_with(1.0), summary_with(2.0)),
        (summary_with(10.0), summary_with(5.0)),
        (summary_with(2.0), summary_with(3.0)),
    ]
    ratio = compare(pairs)["latency_ms.p50"]
    assert (ratio.median, ratio.least, ratio.most, ratio.rounds) == pytest.approx((1.5, 0.5, 2.0, 3))
    assert compare(pairs)["output_tokens_per_s"].median == pytest.approx(1 / 1.5)
    assert "cached_share" not in compare(pairs)  # 0 in A: no ratio


def test_medians_cover_every_metric_that_exists() -> None:
    found = medians([summary_with(1.0, 1), summary_with(3.0, 1), summary_with(2.0, 1)])
    assert found["latency_ms.p99"] == pytest.approx(2000)
    assert set(METRICS) - set(found) == {
        f"itl_ms.{part}" for part in ("mean", "p50", "p90", "p99")
    }  # these records have no gaps
    assert value(summary_with(1.0), "itl_ms.p50") is None
