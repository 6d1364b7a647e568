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
    parked: int = 0
    steps: int = 0
    failed_steps: int = 0
    cancelled: int = 0
    adopted: int = 0
    stale: int = 0  # messages of a former attempt
