"""What the tree and the queue are to be good for, and whether it holds here."""

from __future__ import annotations

from collections.abc import Iterator

from ..aim import Aim
from .run import RadixOutcome, Scene

USUAL_WAITING = 10_000
"""The queue depth that those of picking are about."""
MATCHED_TOKENS = 4096

PICK_GROWTH_MOST = 3.0
"""With so many waiting a pick takes at most so many times as long as in the smallest queue."""
TEXTBOOK_GAIN_LEAST = 100.0
"""And one pass of the textbook's takes at least as long as so many picks."""
MATCH_MOST_US = 100.0
PASS_MOST_MS = 1.0
"""A whole pass, for each 64 rows."""
CALL_MOST_MS = 20.0


def aims(outcome: RadixOutcome) -> list[Aim]:
    """Those that the outcome says something about."""
    grouped = [scene for scene in outcome.scenes if scene.shape.name == "grouped"]
    found: list[Aim] = []
    if grouped:
        least = min(scene.shape.size for scene in grouped)
        deep = [scene for scene in grouped if scene.shape.size >= USUAL_WAITING]
        if deep:
            found += _of_picks(min(deep, key=lambda scene: scene.shape.size), least)
        matches = [figure.p50_us for scene in grouped if (figure := scene.tree[f"match_{MATCHED_TOKENS}"]) is not None]
        found.append(Aim(f"a cached prompt of {MATCHED_TOKENS:,} tokens is found", max(matches), MATCH_MOST_US, "us"))
    if outcome.passes:
        slowest = max(one.ms_per_64_rows for one in outcome.passes)
        found.append(Aim("a whole pass, median, for each 64 rows", slowest, PASS_MOST_MS, "ms"))
    if outcome.worst:
        found.append(Aim("the longest call", max(one.longest_ms for one in outcome.worst), CALL_MOST_MS, "ms"))
    return found


def _of_picks(deep: Scene, least: int) -> Iterator[Aim]:
    there = f"with {deep.shape.size:,} waiting"
    if (growth := pick_growth(deep)) is not None:
        yield Aim(f"a pick {there} / one with {least:,}", growth, PICK_GROWTH_MOST, "x")
    if (gain := textbook_gain(deep)) is not None:
        yield Aim(f"a textbook pass / a pick {there}", gain, TEXTBOOK_GAIN_LEAST, "x", least=True)


def pick_growth(scene: Scene) -> float | None:
    """How many times as long a pick takes as one in the small queue, timed in turn with it."""
    small, here = scene.queue["pick_small"], scene.queue["pick"]
    return here.p50_us / small.p50_us if small is not None and here is not None and small.p50_us else None


def textbook_gain(scene: Scene) -> float | None:
    """How many picks one pass of the textbook's takes."""
    ours, textbook = scene.queue["pick"], scene.queue["textbook"]
    return textbook.p50_us / ours.p50_us if ours is not None and textbook is not None and ours.p50_us else None
