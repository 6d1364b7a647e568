"""Show an `Outcome` as tables, and write it as JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from .measure import Outcome, Server
from .plan import Plan
from .stats import METRICS, Lag, Ratio, Spread, Summary

FORMAT = 1
"""Version of the JSON file; it grows when a field changes its meaning or goes."""
LAG_LIMIT_MS = 5.0
"""Above this 99th percentile the generator's own delay is no longer small beside a token's time."""
CPU_LIMIT = 0.8
"""Above this share of one CPU the generator may be the bottleneck."""


def show(console: Console, plan: Plan, servers: Iterable[Server], outcome: Outcome) -> None:
    """Print a table per server, a comparison when there are two, and warnings about the generator."""
    for server in servers:
        summaries = outcome.of(server.label)
        console.print(_server_table(server, outcome.models[server.label], plan, summaries))
        for warning in warnings(summaries):
            console.print(f"warning: {warning}", style="yellow", highlight=False)
    if outcome.comparison():
        console.print(_comparison_table(outcome))


def as_json(plan: Plan, servers: Iterable[Server], outcome: Outcome, *, records: bool) -> bytes:
    """The whole outcome as JSON, with one record per request if ``records``."""
    turns = []
    for turn in outcome.turns:
        one: dict[str, Any] = {
            "round": turn.round,
            "server": turn.label,
            "flushed": turn.flushed,
            **asdict(turn.summary),
        }
        turns.append(one | ({"records": [_record(record) for record in turn.records]} if records else {}))
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-serve",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "servers": {server.label: {"url": server.url, "model": outcome.models[server.label]} for server in servers},
        "plan": asdict(plan),
        "fit": asdict(outcome.fit),
        "turns": turns,
        "medians": outcome.medians(),
        "ratios_b_over_a": {metric: asdict(ratio) for metric, ratio in outcome.comparison().items()},
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2)


def warnings(summaries: Iterable[Summary]) -> list[str]:
    """Why the figures may not be the server's; empty if all is well."""
    found: list[str] = []
    for lag in [summary.lag for summary in summaries]:
        if lag.loop_p99_ms > LAG_LIMIT_MS or lag.send_p99_ms > LAG_LIMIT_MS:
            found.append(f"the load generator lagged (p99 {_lag(lag)}): times may be too long by that much")
        if lag.cpu_share > CPU_LIMIT:
            found.append(f"the load generator used {lag.cpu_share:.0%} of a CPU and may be the bottleneck")
    return found[:2]  # one round's worth says it


def _lag(lag: Lag) -> str:
    return f"{lag.loop_p99_ms:.1f} ms in its loop, {lag.send_p99_ms:.1f} ms in sending"


def _server_table(server: Server, model: str, plan: Plan, summaries: list[Summary]) -> Table:
    rounds = f", {len(summaries)} rounds" if len(summaries) > 1 else ""
    table = Table(title=f"{server.label}: {server.url}  {model}  {plan.workload}{rounds}", title_justify="left")
    table.add_column("metric")
    for index in range(len(summaries)):
        table.add_column(f"round {index + 1}" if rounds else "value", justify="right")
    for name, values in zip(_ROW_NAMES, zip(*(_rows(one) for one in summaries), strict=True), strict=True):
        table.add_row(name, *values)
    return table


_ROW_NAMES = (
    "requests ok / sent",
    "failures",
    "duration s",
    "in flight (mean)",
    "TTFT ms mean / p50 / p90 / p99",
    "TPOT ms mean / p50 / p90 / p99",
    "ITL ms mean / p50 / p90 / p99",
    "latency ms mean / p50 / p90 / p99",
    "input tokens",
    "output tokens",
    "cached share of input",
    "requests/s",
    "input tokens/s",
    "output tokens/s",
    "total tokens/s",
    "generator lag ms p99 loop / send, CPU",
)


def _rows(summary: Summary) -> list[str]:
    about = "" if summary.counted else " (pieces counted, no usage)"
    return [
        f"{summary.succeeded} / {summary.requests}",
        ", ".join(f"{kind} {count}" for kind, count in summary.failures.items()) or "none",
        f"{summary.duration_s:.2f}",
        f"{summary.concurrency:.1f}",
        *(_spread(one) for one in (summary.ttft_ms, summary.tpot_ms, summary.itl_ms, summary.latency_ms)),
        f"{summary.input_tokens:,}",
        f"{summary.output_tokens:,}{about}",
        "-" if summary.cached_share is None else f"{summary.cached_share:.1%}",
        f"{summary.requests_per_s:.2f}",
        f"{summary.input_tokens_per_s:,.1f}",
        f"{summary.output_tokens_per_s:,.1f}",
        f"{summary.total_tokens_per_s:,.1f}",
        f"{summary.lag.loop_p99_ms:.1f} / {summary.lag.send_p99_ms:.1f}, {summary.lag.cpu_share:.0%}",
    ]


def _spread(one: Spread | None) -> str:
    return "-" if one is None else " / ".join(f"{value:.1f}" for value in (one.mean, one.p50, one.p90, one.p99))


def _comparison_table(outcome: Outcome) -> Table:
    medians, ratios = outcome.medians(), outcome.comparison()
    rounds = max(ratio.rounds for ratio in ratios.values())
    table = Table(title=f"B / A, median of {rounds} paired rounds", title_justify="left")
    for heading in ("metric", "A", "B", "B / A", "range"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for metric in METRICS:
        if metric in ratios:
            table.add_row(metric, *_compared(medians["A"][metric], medians["B"][metric], ratios[metric]))
    return table


def _compared(a: float, b: float, ratio: Ratio) -> tuple[str, str, str, str]:
    return f"{a:,.2f}", f"{b:,.2f}", f"{ratio.median:.3f}", f"{ratio.least:.3f} - {ratio.most:.3f}"


def _record(record: Any) -> dict[str, Any]:
    fields = asdict(record)
    fields.pop("text")
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")
