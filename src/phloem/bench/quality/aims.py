"""What rounding weights may cost at most."""

from __future__ import annotations

from ..aim import Aim
from .figures import PLAIN, Reading

WORSE_AT_MOST = {"int8": 1.0, "int4": 8.0}
"""Percent by which the perplexity may be higher than with the weights in bfloat16."""


def aims(readings: list[Reading]) -> list[Aim]:
    """Those that the readings say something about."""
    plain = next(reading for reading in readings if reading.mode == PLAIN)
    return [
        Aim(
            f"perplexity with {reading.mode} above that with bfloat16",
            100 * reading.worse_than(plain),
            WORSE_AT_MOST[reading.mode],
            "%",
        )
        for reading in readings
        if reading.mode in WORSE_AT_MOST
    ]
