"""What was measured of one way to hold a model's weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

REFERENCE = "float32"
"""The model computed by torch in float32: what the others are to be like."""
PLAIN = "none"
"""Its weights in bfloat16: what quantised ones are compared with."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One mode's figures."""

    mode: str
    """`REFERENCE`, `PLAIN` or a quantisation."""
    weight_bytes: int | None
    """What a decode step reads; None for the reference."""
    logprob: float
    """Of a token of the text, on average."""
    greedy_share: float
    """Of the tokens of greedy continuations, those before the first that the reference does not have there."""
    next_share: float
    """Of the tokens of the reference's continuations, those that are the mode's choice too after what comes before them."""

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logprob)

    def worse_than(self, other: Reading) -> float:
        """By how much its perplexity is higher, as a share of the other's."""
        return self.perplexity / other.perplexity - 1


def until_first_difference(ours: Iterable[int], theirs: Iterable[int]) -> int:
    """How many tokens both have in common from the beginning."""
    count = 0
    for mine, other in zip(ours, theirs, strict=True):
        if mine != other:
            break
        count += 1
    return count
