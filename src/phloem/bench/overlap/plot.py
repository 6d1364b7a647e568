"""The outcome as a picture: idle shares beside their aims, CPU per token by process."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .aims import IDLE_MOST
from .outcome import OverlapOutcome
from .throughput import CLIENT, Ceiling

PANEL_INCHES = (6.4, 4.4)
DPI = 120
BAR = 0.8
"""Width of a case's bars together."""


def plot(outcome: OverlapOutcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    panels = [bool(outcome.turns), outcome.ceiling is not None]
    figure = Figure(figsize=(PANEL_INCHES[0] * sum(panels), PANEL_INCHES[1]), dpi=DPI, layout="constrained")
    axes = list(figure.subplots(1, sum(panels), squeeze=False).flat)
    if outcome.turns:
        _idle(axes[0], outcome)
    if outcome.ceiling is not None:
        _ceiling(axes[-1], outcome.ceiling)
    figure.savefig(path, format="png")


def _idle(axes: Axes, outcome: OverlapOutcome) -> None:
    medians = outcome.medians
    cases = list(dict.fromkeys(case for case, _ in medians))
    depths = list(dict.fromkeys(depth for _, depth in medians))
    width = BAR / len(depths)
    for at, depth in enumerate(depths):
        places = [number - BAR / 2 + (at + 0.5) * width for number in range(len(cases))]
        bars = axes.bar(
            places, [100 * medians[case, depth].idle_share for case in cases], width, label=f"depth {depth}"
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    for number, case in enumerate(cases):
        most = IDLE_MOST.get((case.rows, case.step_ms))
        if most is not None:
            label = "" if axes.get_lines() else "aim at depth 2"
            axes.plot([number - BAR / 2, number + BAR / 2], [most, most], "k--", linewidth=1, label=label or None)
    names = [f"{case.device}\n{case.rows} rows\n{case.step_ms:g} ms" for case in cases]
    axes.set_xticks(range(len(cases)), names, fontsize=8)
    axes.set_ylabel("device idle, %")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _ceiling(axes: Axes, found: Ceiling) -> None:
    costs = sorted(found.us_per_token.items(), key=lambda one: one[1])
    kernel = {name: found.system_s[name] / found.tokens * 1e6 for name, _ in costs}
    names = [f"{name} (apart)" if name == CLIENT else name for name, _ in costs]
    bars = axes.barh(names, [us for _, us in costs], color="tab:green", label="all")
    axes.barh(names, [kernel[name] for name, _ in costs], color="tab:gray", label="in the kernel")
    axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    axes.margins(x=0.12)
    axes.set_xlabel("CPU us per token")
    axes.set_title(f"{found.rate:,.0f} tokens/s, {found.apart:,.0f} with the client apart", fontsize=9, loc="left")
    axes.legend(fontsize=8)
