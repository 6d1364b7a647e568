"""The keyed uniform draw: the same request draws the same number in any batch, on any worker, after any retraction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch import Ints

SAMPLER_VERSION = "keyed-splitmix-1"
"""Changes whenever (seed, child, output position) or the same logits would give another token."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHILD = np.uint64(0xD1B54A32D192ED03)


def uniforms(seeds: NDArray[np.uint64], children: Ints, positions: Ints) -> NDArray[np.float64]:
    """float64 in [0, 1) per row, a hash of (seed, child, output position) with 53 random bits."""
    state = _mix(seeds + _STEP)
    state = _mix(state ^ (children.astype(np.uint64) * _CHILD))
    state = _mix(state + positions.astype(np.uint64) * _STEP)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit changes each output bit with probability one half."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
