"""Show what simulations came to, and write it as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table

from .jobs import Row
from .plan import PolicyPlan
from .run import PolicyOutcome

FORMAT = 1
"""Version of the JSON file."""
NAMES = ("policy", "eviction")
"""Columns of words; all others are of numbers."""
IN_FULL = (*NAMES, "pool", "prefill")
"""Columns that are never cut, however narrow the terminal."""


def tables(plan: PolicyPlan, outcome: PolicyOutcome) -> Iterator[Table]:
    """One table per workload, in the plan's order."""
    for workload in plan.workloads:
        match workload:
            case "ageing":
                yield _ageing_table(plan, outcome)
            case "eviction":
                yield _eviction_table(plan, outcome)
            case _:
                yield _policy_table(plan, outcome, workload)


def about(plan: PolicyPlan, workload: str) -> str:
    """A workload's parameters in words."""
    talk, fork, hits = plan.talk, plan.fork, plan.hits
    match workload:
        case "conversations" | "recorded":
            comes = "all turns come at once" if workload == "recorded" else f"{talk.think_s:g} s between turns"
            said = f"{talk.first_tokens} + {talk.user_tokens} a turn, answers of {talk.answer_tokens}"
            return (
                f"{talk.conversations} of {talk.turns} turns ({said} tokens), {comes}; "
                f"the pool holds {plan.room:g} of them; {_running(plan)}"
            )
        case "agents":
            return (
                f"a trunk of {fork.trunk_tokens} tokens, {fork.forks} forks x {fork.sub_forks} sub-forks of {fork.turns} turns "
                f"({fork.tool_tokens} tokens from a tool after {fork.tool_s:g} s, answers of about {fork.answer_tokens}); "
                f"the pool holds {plan.agents_pool:.0%} of all; {_running(plan)}"
            )
        case "trace":
            return (
                f"first {plan.requests} requests of the trace, lengths / 16, times / {plan.speedup:g}; {_running(plan)}"
            )
        case "eviction":
            return (
                f"first {plan.requests} requests of the trace, lengths / 16, in order of arrival (fcfs), one row at a time; "
                "gap closed: of the prefill tokens between plain LRU and the optimum"
            )
        case _:
            return (
                f"{hits.waiting} hits on {hits.prefix_tokens} cached tokens always wait, {hits.running} run, lpm; "
                f"one comes that has none of its {hits.miss_tokens} cached"
            )


def _running(plan: PolicyPlan) -> str:
    return f"up to {plan.max_running} rows, ageing {plan.ageing_s:g} s"


def _policy_table(plan: PolicyPlan, outcome: PolicyOutcome, workload: str) -> Table:
    rows = outcome.of(workload)
    columns: dict[str, Callable[[Row], str]] = {"policy": lambda row: row.policy}
    if len(plan.evictions) > 1:
        columns["eviction"] = lambda row: row.eviction
    columns |= {
        "pool": lambda row: f"{row.pool_pages:,}",
        "prefill": lambda row: f"{row.figures.prefill_tokens:,}",
        "fcfs / it": lambda row: _times(outcome.saving(row)),
        "hits": lambda row: f"{row.figures.hit_share:.1%}",
        "wait s p50": lambda row: f"{row.figures.wait_p50_s:.2f}",
        "wait s p99": lambda row: f"{row.figures.wait_p99_s:.2f}",
        "done in s": lambda row: f"{row.figures.makespan_s:.1f}",
    }
    return _table(f"{workload}: {about(plan, workload)}", rows, columns)


def _eviction_table(plan: PolicyPlan, outcome: PolicyOutcome) -> Table:
    columns: dict[str, Callable[[Row], str]] = {
        "pool": lambda row: _pool(row.pool_pages, row.pool_share),
        "eviction": lambda row: row.eviction if row.demand_aware else f"{row.eviction}, plain",
        "visible": lambda row: str(row.visible) if row.demand_aware else "-",
        "prefill": lambda row: f"{row.figures.prefill_tokens:,}",
        "hits": lambda row: f"{row.figures.hit_share:.1%}",
        "gap closed": lambda row: _share(outcome.gap_closed(row)),
    }
    table = _table(f"eviction: {about(plan, 'eviction')}", [], columns)
    for best in outcome.best:
        for row in outcome.of("eviction"):
            if row.pool_pages == best.pool_pages:
                table.add_row(*(column(row) for column in columns.values()))
        found = best.optimum
        pool = _pool(best.pool_pages, best.pool_share)
        table.add_row(pool, "optimum", "all", f"{found.prefill_tokens:,}", f"{found.hit_share:.1%}", "100%")
    return table


def _ageing_table(plan: PolicyPlan, outcome: PolicyOutcome) -> Table:
    return _table(
        f"ageing: {about(plan, 'ageing')}",
        outcome.of("ageing"),
        {
            "ageing s": lambda row: f"{row.ageing_s:g}",
            "the miss waits s": lambda row: f"{row.miss_wait_s:.2f}",
            "all wait s p50": lambda row: f"{row.figures.wait_p50_s:.2f}",
            "hits": lambda row: f"{row.figures.hit_share:.1%}",
        },
    )


def _table(title: str, rows: list[Row], columns: dict[str, Callable[[Row], str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in NAMES else "right", no_wrap=name in IN_FULL)
    for row in rows:
        table.add_row(*(column(row) for column in columns.values()))
    return table


def _pool(pages: int, share: float) -> str:
    return f"{pages:,} ({share:.0%})"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def as_json(plan: PolicyPlan, outcome: PolicyOutcome) -> bytes:
    """Everything that was simulated, with all parameters."""
    rows: list[dict[str, Any]] = []
    for row in outcome.rows:
        more = (
            {"gap_closed": outcome.gap_closed(row)}
            if row.workload == "eviction"
            else {"fcfs_ratio": outcome.saving(row)}
        )
        rows.append(asdict(row) | more)
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-policy",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "plan": asdict(plan) | {"trace": None if plan.trace is None else plan.trace.name},
        "rows": rows,
        "optima": [
            {
                "pool_pages": one.pool_pages,
                "pool_share": one.pool_share,
                "hit_share": one.optimum.hit_share,
                **asdict(one.optimum),
            }
            for one in outcome.best
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
