"""Terms of leaders: numbers that grow by one with each change."""

from __future__ import annotations

LEAP = 1_000_000
"""A term so far above the highest that was seen is nobody's: to believe it would leave none above."""


def follows(term: int, highest: int) -> bool:
    """Whether ``term`` can be believed of whoever has seen terms up to ``highest``."""
    return term <= highest + LEAP
