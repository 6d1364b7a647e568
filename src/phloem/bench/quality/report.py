"""Show what `quality` measured as a table, and write it as JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from .aims import aims
from .figures import PLAIN, REFERENCE
from .plan import QualityPlan
from .run import QualityOutcome

FORMAT = 1
"""Version of the JSON file."""
NAMES = {
    REFERENCE: "float32 (torch)",
    PLAIN: "none (bfloat16)",
    "int8": "int8",
    "int4": "int4",
    "stored": "stored, as in the file",
}


def table(plan: QualityPlan, outcome: QualityOutcome) -> Table:
    """A line for each mode."""
    title = (
        f"{outcome.model}, {outcome.level} kernels: {outcome.tokens:,} tokens of prose in {outcome.windows} windows; "
        f"{plan.prompts} prompts continued by {plan.tokens} tokens"
    )
    found = Table(title=title, title_justify="left")
    for at, heading in enumerate(
        ("weights", "MB", "perplexity", "above bfloat16", "greedy equal until a difference", "next tokens equal")
    ):
        found.add_column(heading, justify="right" if at else "left")
    plain = next(reading for reading in outcome.readings if reading.mode == PLAIN)
    for reading in outcome.readings:
        found.add_row(
            NAMES[reading.mode],
            "" if reading.weight_bytes is None else f"{reading.weight_bytes / 1e6:,.1f}",
            f"{reading.perplexity:.3f}",
            f"{reading.worse_than(plain):+.2%}",
            f"{reading.greedy_share:.1%}",
            f"{reading.next_share:.1%}",
        )
    return found


def verdicts(outcome: QualityOutcome) -> Iterator[str]:
    """A line for each aim."""
    for aim in aims(outcome.readings):
        held = "held" if aim.holds else "NOT held"
        yield f"{held}: {aim.text}: {aim.value:+.2f} {aim.unit}, aim <= {aim.limit:g} {aim.unit}"


def as_json(plan: QualityPlan, outcome: QualityOutcome) -> bytes:
    """Everything that was measured."""
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-quality",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "plan": asdict(plan),
        "model": outcome.model,
        "kernels": outcome.level,
        "windows": outcome.windows,
        "tokens": outcome.tokens,
        "modes": {reading.mode: {**asdict(reading), "perplexity": reading.perplexity} for reading in outcome.readings},
        "aims": [{**asdict(aim), "holds": aim.holds} for aim in aims(outcome.readings)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
