"""The outcome as a picture: what operations cost by size with the textbook's beside them, whole passes, the longest calls, and the aims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .aims import (
    CALL_MOST_MS,
    MATCH_MOST_US,
    MATCHED_TOKENS,
    PASS_MOST_MS,
    PICK_GROWTH_MOST,
    TEXTBOOK_GAIN_LEAST,
    pick_growth,
    textbook_gain,
)
from .clock import Figure as Times
from .passes import Load, Passes
from .report import QUEUE_ROWS, TREE_ROWS
from .run import RadixOutcome, RadixPlan, Scene
from .worst import Worst

INCHES = (18.0, 8.0)
DPI = 120
HARD = {"flat": "s", "chain": "^"}
"""Markers of the hard shapes, which are of one size each."""
TEXTBOOK = "textbook"
MARGIN = 1.3
"""How much further than the largest size, and than the smallest, the size axis goes."""


def plot(plan: RadixPlan, outcome: RadixOutcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    # Each half is laid out for itself: the long names of one don't push the panels of the other apart.
    upper, lower = figure.subfigures(2, 1, squeeze=False).flat
    tree, queue, by_size = upper.subplots(1, 3)
    passes, worst = lower.subplots(1, 2)
    figure.suptitle(
        f"CPU time of one thread, medians, pages of {plan.page_size} tokens; lines: prompts in groups, squares: flat, triangles: chain",
        fontsize=10,
    )
    _operations(tree, outcome.scenes, TREE_ROWS, lambda scene: scene.tree)
    _aim(tree, MATCH_MOST_US, f"aim: find {MATCHED_TOKENS:,}")
    _operations(queue, outcome.scenes, QUEUE_ROWS, lambda scene: scene.queue)
    _ratios(by_size, outcome.scenes)
    sizes = [scene.shape.size for scene in outcome.scenes]
    for axes in (tree, queue, by_size):
        axes.set_xlim(min(sizes) / MARGIN, max(sizes) * MARGIN)
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    _passes(passes, outcome.passes)
    _worst(worst, outcome.worst)
    figure.savefig(path, format="png")


def _operations(
    axes: Axes, scenes: Sequence[Scene], names: dict[str, str], times: Callable[[Scene], dict[str, Times | None]]
) -> None:
    for name, text in names.items():

        def median(scene: Scene, name: str = name) -> float | None:
            found = times(scene).get(name)
            return None if found is None else found.p50_us

        _line(axes, scenes, median, text, "k--" if name == TEXTBOOK else "-")
    _by_size(axes)
    axes.set_ylabel("us")


def _ratios(axes: Axes, scenes: Sequence[Scene]) -> None:
    _line(axes, scenes, pick_growth, "a pick / one in the smallest queue", "tab:blue")
    _aim(axes, PICK_GROWTH_MOST, f"aim: at most {PICK_GROWTH_MOST:g}", "tab:blue")
    _line(axes, scenes, textbook_gain, "a textbook pass / a pick", "tab:orange")
    _aim(axes, TEXTBOOK_GAIN_LEAST, f"aim: at least {TEXTBOOK_GAIN_LEAST:g}", "tab:orange")
    _by_size(axes)
    axes.set_ylabel("times as long")


def _passes(axes: Axes, passes: Sequence[Passes]) -> None:
    for load in Load:
        own = sorted((one for one in passes if one.load is load), key=lambda one: one.rows)
        if own:
            waiting = max(one.waiting for one in own)
            text = f"{load.value} ({waiting:,} waiting)" if waiting else load.value
            axes.plot([one.rows for one in own], [one.ms_per_64_rows for one in own], "o-", label=text)
    rows = sorted({one.rows for one in passes})
    _aim(axes, PASS_MOST_MS, "aim")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(one) for one in rows])
    axes.minorticks_off()
    axes.set_xlabel("rows")
    axes.set_ylabel("ms of a whole pass, for each 64 rows")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _worst(axes: Axes, worst: Sequence[Worst]) -> None:
    bars = axes.barh([one.event for one in worst], [one.longest_ms for one in worst], color="tab:green")
    axes.bar_label(bars, [f"{one.longest_ms:.1f}" for one in worst], fontsize=7, padding=2)
    axes.axvline(CALL_MOST_MS, color="black", linestyle=":", linewidth=1)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("longest call, ms; dotted: aim")


def _line(axes: Axes, scenes: Sequence[Scene], of: Callable[[Scene], float | None], text: str, style: str) -> None:
    """A line over the sizes of prompts in groups, and a marker for each hard shape, in the same colour. What is 0 has no place here."""
    found = [(scene.shape, value) for scene in scenes if (value := of(scene))]
    grouped = sorted((shape.size, value) for shape, value in found if shape.name not in HARD)
    (line,) = axes.plot(
        [size for size, _ in grouped], [value for _, value in grouped], style, marker="o", markersize=3, label=text
    )
    for shape, value in found:
        if shape.name in HARD:
            axes.plot([shape.size], [value], HARD[shape.name], color=line.get_color(), markersize=5)


def _aim(axes: Axes, limit: float, text: str, color: str = "black") -> None:
    axes.axhline(limit, color=color, linestyle=":", linewidth=1, label=text)


def _by_size(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("cached prompts, and as many that wait")
