"""Keyed random numbers: the same request draws with the same ones in any batch, on any worker, after any retraction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch import Ints

SAMPLER_VERSION = "keyed-race-1"
"""Changes whenever (seed, child, output position) or the same logits would give another token."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHILD = np.uint64(0xD1B54A32D192ED03)


def waits(seeds: NDArray[np.uint64], children: Ints, positions: Ints, count: int) -> NDArray[np.float64]:
    """float64 [n, count]: for each row ``count`` exponential variates (mean 1, never 0), a hash of (seed, child, output position)."""
    state = _mix(seeds + _STEP)
    state = _mix(state ^ (children.astype(np.uint64) * _CHILD))
    state = _mix(state + positions.astype(np.uint64) * _STEP)
    each = _mix(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)
    # The middles of 2**52 equal parts of (0, 1): half a part beside 53 bits would round to 1, whose logarithm is 0.
    return -np.log(((each >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit changes each output bit with probability one half."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
