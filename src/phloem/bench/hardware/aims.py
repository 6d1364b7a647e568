"""How near to the machine's limits the worker is to come."""

from __future__ import annotations

from collections.abc import Iterable

from ..aim import Aim
from .figures import DECODE, PREFILL, Row

DECODE_MOST = 1.6
"""A step of one row takes at most so many times as long as reading its weights."""
PREFILL_LEAST = 0.6
"""A prompt is computed at no less than this share of the matrix rate."""


def aim_of(row: Row) -> Aim | None:
    """The aim that ``row`` is about; None if none is."""
    weights = "" if row.quantize == "none" else f", {row.quantize}"
    if row.kind == DECODE and row.size == 1:
        return Aim(f"a step of one row / reading its weights{weights}", row.of_limit, DECODE_MOST, "x")
    if row.kind == PREFILL:
        return Aim(
            f"a prompt of {row.size} tokens / the matrix rate{weights}",
            row.of_limit * 100,
            PREFILL_LEAST * 100,
            "%",
            True,
        )
    return None


def aims(rows: Iterable[Row]) -> list[Aim]:
    """Those that the rows say something about."""
    return [aim for aim in map(aim_of, rows) if aim is not None]
