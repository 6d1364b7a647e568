"""Monotonic totals of the core, by the name they have as metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Exported as ``phloem_scheduler_<name>_total``."""

    requests: int = 0  # accepted
    rejected: int = 0
    choices_ended: int = 0
    prompt_tokens: int = 0  # known tokens of rows that were opened
    cached_tokens: int = 0  # those of them found in a tree
    output_tokens: int = 0  # committed
    wasted_draws: int = 0  # drawn for a choice that had ended
    late_masks: int = 0  # draws that yielded nothing and run again
    retractions: int = 0
    preempted: int = 0  # of them for a choice of much higher priority
    placed_only: int = 0  # choices that went to a worker because there was no other
    placed_prefix: int = 0  # because it had most of their prompt
    placed_load: int = 0  # because it had least to do
    placed_balance: int = 0  # because the one with more of their prompt had far too much to do
    placed_room: int = 0  # because better ones had no room
    steps: int = 0
    failed_steps: int = 0
    cancelled: int = 0
    adopted: int = 0
    stale: int = 0  # messages of a former attempt

    def placed(self, reason: str) -> None:
        """A choice was placed for one of the reasons above."""
        name = f"placed_{reason}"
        setattr(self, name, getattr(self, name) + 1)
