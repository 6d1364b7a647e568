"""The outcome as a picture: one panel per workload."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .jobs import Row
from .plan import PolicyPlan
from .report import about
from .run import PolicyOutcome

PANEL_INCHES = (6.4, 4.2)
COLUMNS = 2
TITLE_COLUMNS = 100
DPI = 120


def plot(plan: PolicyPlan, outcome: PolicyOutcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    workloads = list(dict.fromkeys(plan.workloads))
    columns = min(COLUMNS, len(workloads))
    lines = -(-len(workloads) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines), dpi=DPI, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for workload, axes in zip(workloads, panels, strict=False):
        axes.set_title(fill(f"{workload}: {about(plan, workload)}", TITLE_COLUMNS), fontsize=7, loc="left")
        match workload:
            case "ageing":
                _ageing(axes, outcome.of(workload))
            case "trace":
                _trace(axes, outcome.of(workload))
            case "eviction":
                _eviction(axes, outcome)
            case _:
                _bars(axes, outcome.of(workload))
    for axes in list(panels):
        axes.set_visible(False)
    figure.savefig(path, format="png")


def _bars(axes: Axes, rows: list[Row]) -> None:
    several = len({row.eviction for row in rows}) > 1
    names = [f"{row.policy}\n{row.eviction}" if several else row.policy for row in rows]
    bars = axes.bar(range(len(rows)), [row.figures.prefill_tokens for row in rows], color="tab:green")
    axes.bar_label(bars, [f"{row.figures.hit_share:.0%} hit" for row in rows], fontsize=7)
    axes.set_xticks(range(len(rows)), names, fontsize=8, rotation=90 if several else 0)
    axes.set_ylabel("prefill tokens")


def _trace(axes: Axes, rows: list[Row]) -> None:
    for policy, eviction in dict.fromkeys((row.policy, row.eviction) for row in rows):
        own = [row for row in rows if (row.policy, row.eviction) == (policy, eviction)]
        _line(axes, [(row.pool_share, row.figures.hit_share) for row in own], f"{policy}, {eviction}")
    _hits_over_pool(axes)


def _eviction(axes: Axes, outcome: PolicyOutcome) -> None:
    rows = outcome.of("eviction")
    kinds = dict.fromkeys((row.eviction, row.demand_aware, row.visible) for row in rows)
    for kind in kinds:
        own = [row for row in rows if (row.eviction, row.demand_aware, row.visible) == kind]
        eviction, aware, visible = kind
        name = f"{eviction}, {visible} visible" if aware else f"{eviction}, plain"
        _line(axes, [(row.pool_share, row.figures.hit_share) for row in own], name)
    _line(axes, [(best.pool_share, best.optimum.hit_share) for best in outcome.best], "optimum", style="k--")
    _hits_over_pool(axes)


def _ageing(axes: Axes, rows: list[Row]) -> None:
    _line(axes, [(row.ageing_s, row.miss_wait_s or 0.0) for row in rows], "a miss among hits")
    axes.set_xlabel("ageing s")
    axes.set_ylabel("wait of the miss, s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _line(axes: Axes, points: list[tuple[float, float]], name: str, style: str = "o-") -> None:
    places = sorted(points)
    axes.plot([x for x, _ in places], [y for _, y in places], style, label=name, markersize=3)


def _hits_over_pool(axes: Axes) -> None:
    axes.set_xlabel("pool, as a share of all distinct pages")
    axes.set_ylabel("hit share")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
