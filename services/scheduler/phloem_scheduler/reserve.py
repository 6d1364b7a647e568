"""How much room running rows may still need: the share of their remaining output that is set aside before a newcomer is let in.

The share starts high, sinks while decoding goes well, and is set anew from what is known when rows had to be retracted.
"""

from __future__ import annotations

from collections.abc import Iterable

from .rows import Row

FLOOR = 0.14  # of the start
STEPS_TO_FLOOR = 600
CLIP_TOKENS = 4096  # a longer remaining output is reckoned as this: few outputs use up such a limit
MARGIN_STEPS = 20  # after a retraction each row is reckoned to go on for at least this long


class Reserve:
    """The adaptive share; start: where it begins, in [0, 1]."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.share = start

    def decoded(self) -> None:
        """One step with decode rows went well."""
        self.share = max(FLOOR * self.start, self.share - self.start * (1 - FLOOR) / STEPS_TO_FLOOR)

    def idle(self) -> None:
        """Nothing runs: back to the start."""
        self.share = self.start

    def retracted(self, rows: Iterable[Row]) -> None:
        """Rows had to go; these stay."""
        generated = limits = count = 0
        for row in rows:
            generated += len(row.choice.output)
            limits += row.limit
            count += 1
        self.share = min(1.0, (generated + MARGIN_STEPS * count) / (limits + 1))

    def of(self, row: Row) -> float:
        """Tokens to set aside for a running row: what is left of its prompt, and the share of its output."""
        left = max(0, row.known_tokens - len(row.table) * row.worker.cache.page_size)
        return left + min(row.quota, CLIP_TOKENS) * self.share
