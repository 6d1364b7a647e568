"""How torch's OpenMP threads wait. Imports nothing: OpenMP reads its settings once, when torch is loaded."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
TURNS = 10_000
"""How often a waiting thread looks before it sleeps: 0.3 ms. Usual are 300,000, some 10 ms, in which threads that sampling has used
keep cores from the next step's kernels: on two cores a step of 4 rows took twice as long. What torch computes itself is not slower."""


def sleep_soon(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have them sleep soon, unless somebody has said how they are to wait. Has no effect once torch is loaded."""
    if SPINS not in environ and POLICY not in environ:
        environ[SPINS] = str(TURNS)
