"""Show an overlap measurement, and write it as JSON."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from .figures import Idle
from .run import OverlapOutcome, OverlapPlan, OverlapTurn

FORMAT = 1
"""Version of the JSON file."""


def line(turn: OverlapTurn) -> str:
    """One run in a line."""
    one = turn.idle
    shares = f"idle {one.lost_share:.2%} (device: {one.idle_share:.2%})"
    return f"round {turn.round + 1}, depth {turn.depth}: {shares}, {one.steps} steps, period {one.period_ms:.2f} ms"


def table(plan: OverlapPlan, outcome: OverlapOutcome) -> Table:
    """Medians per depth."""
    title = f"device idle: {plan.rows} rows, {plan.step_ms:g} ms steps, medians of {plan.rounds} rounds"
    found = Table(title=title, title_justify="left")
    for heading in ("", *(f"depth {depth}" for depth in outcome.medians())):
        found.add_column(heading, justify="right" if heading else "left")
    columns = [_column(one) for one in outcome.medians().values()]
    for name, values in zip(_NAMES, zip(*columns, strict=True), strict=True):
        found.add_row(name, *values)
    return found


_NAMES = (
    "idle by the clock: 1 - steps x step / time",
    "idle as the device says",
    "idle before a step us p50 / p99",
    "longest idle ms",
    "steps after more than 1 % of a step idle",
    "device time of a step ms p50",
    "period of a step ms",
)


def _column(one: Idle) -> tuple[str, ...]:
    return (
        f"{one.lost_share:.2%}",
        f"{one.idle_share:.2%}",
        f"{one.idle_p50_us:.0f} / {one.idle_p99_us:.0f}",
        f"{one.idle_max_ms:.1f}",
        f"{one.late_steps} of {one.steps}",
        f"{one.busy_p50_ms:.3f}",
        f"{one.period_ms:.3f}",
    )


def as_json(plan: OverlapPlan, outcome: OverlapOutcome) -> bytes:
    """Everything that was measured."""
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-overlap",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "plan": asdict(plan),
        "turns": [asdict(turn) for turn in outcome.turns],
        "medians": {str(depth): asdict(one) for depth, one in outcome.medians().items()},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
