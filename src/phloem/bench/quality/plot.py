"""The outcome as a picture: perplexities, and agreement with the reference."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .figures import REFERENCE
from .run import QualityOutcome

INCHES = (9.0, 4.0)
DPI = 120
BAR = 0.4


def plot(outcome: QualityOutcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"{outcome.model}: {outcome.tokens:,} tokens of prose", fontsize=10)
    names = [reading.mode for reading in outcome.readings]
    bars = left.bar(names, [reading.perplexity for reading in outcome.readings], color="tab:green")
    left.bar_label(bars, [f"{reading.perplexity:.2f}" for reading in outcome.readings], fontsize=8)
    left.set_ylabel("perplexity")
    others = [reading for reading in outcome.readings if reading.mode != REFERENCE]
    places = range(len(others))
    right.bar(
        [place - BAR / 2 for place in places],
        [100 * reading.greedy_share for reading in others],
        BAR,
        label="greedy, until the first difference",
    )
    right.bar(
        [place + BAR / 2 for place in places],
        [100 * reading.next_share for reading in others],
        BAR,
        label="next tokens on the reference's text",
    )
    right.set_xticks(places, [reading.mode for reading in others])
    right.set_ylabel("% equal to float32")
    right.set_ylim(0, 115)
    right.legend(fontsize=7)
    figure.savefig(path, format="png")
