"""Who gives up its pages when there are too few for everybody."""

from __future__ import annotations

from collections.abc import Iterable

from .rows import Row


def victim(rows: Iterable[Row]) -> Row | None:
    """Of the rows with the lowest priority the one with the shortest output, of those the one with the longest prompt, then the last that came.

    It has the least to compute again for the room it frees. Rows whose last draw is planned already are left to finish. None if fewer than
    two rows are there: the last one always stays, and fits, since the length of a sequence is limited to what the pool can hold.
    """
    there = list(rows)
    if len(there) < 2:
        return None
    going_on = [row for row in there if row.extending or row.quota > 0]
    return min(going_on, key=cost, default=None)


def cost(row: Row) -> tuple[int, int, int, float, int, int]:
    """Smaller is retracted sooner."""
    request = row.choice.request
    return (
        request.priority,
        len(row.choice.output),
        -request.prompt_tokens,
        -request.arrival,
        -request.number,
        -row.choice.child,
    )
