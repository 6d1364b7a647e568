"""The outcome as a picture: decode steps beside reading the weights, prompts beside the matrix rate."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .aims import DECODE_MOST, PREFILL_LEAST
from .figures import DECODE, PREFILL, Row
from .report import NAMES
from .run import HardwareOutcome

INCHES = (11.0, 4.4)
DPI = 120


def plot(outcome: HardwareOutcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    decode, prefill = figure.subplots(1, 2)
    limit, rows = outcome.limit, outcome.rows
    figure.suptitle(f"{outcome.model}, {outcome.level} kernels, {outcome.threads} threads", fontsize=10)
    _panel(decode, [row for row in rows if row.kind == DECODE], DECODE_MOST)
    decode.set_xlabel("rows")
    decode.set_ylabel(f"time of a step / reading its weights at {limit.bandwidth:.0f} GB/s")
    _panel(prefill, [row for row in rows if row.kind == PREFILL], PREFILL_LEAST)
    prefill.set_xlabel("tokens of the prompt")
    prefill.set_ylabel(f"share of {limit.rate:,.0f} GFLOP/s")
    figure.savefig(path, format="png")


def _panel(axes: Axes, rows: list[Row], aim: float) -> None:
    for quantize in dict.fromkeys(row.quantize for row in rows):
        own = [row for row in rows if row.quantize == quantize]
        axes.plot([row.size for row in own], [row.of_limit for row in own], "o-", label=f"weights {NAMES[quantize]}")
    axes.axhline(aim, color="black", linestyle="--", linewidth=1, label="aim")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row.size for row in rows}), [str(size) for size in sorted({row.size for row in rows})])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
