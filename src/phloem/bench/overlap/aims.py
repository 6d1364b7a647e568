"""How busy a device is to be kept, and how many tokens are to come out of the gateway."""

from __future__ import annotations

from ..aim import Aim
from .figures import Idle
from .plan import Case
from .throughput import Ceiling

IDLE_MOST = {(64, 8.0): 1.0, (256, 8.0): 1.0, (64, 2.0): 2.0}
"""Percent that the device may be idle, by rows and milliseconds of a step."""
DEPTH = 2
"""Plans in flight with which it is to be so: a scheduler's default."""
CEILING_LEAST = 15_000.0
"""Tokens per second at the gateway's socket with a device that takes no time, on two cores."""


def idle_aim(case: Case, depth: int, idle: Idle) -> Aim | None:
    """The aim that a case is about; None if none is."""
    most = IDLE_MOST.get((case.rows, case.step_ms))
    if most is None or depth != DEPTH:
        return None
    return Aim(f"device idle: {case.name}, depth {depth}", 100 * idle.idle_share, most, "%")


def ceiling_aim(ceiling: Ceiling) -> Aim:
    """Without the client's cost."""
    return Aim("tokens/s at the gateway's socket, the client apart", ceiling.apart, CEILING_LEAST, "tokens/s", True)
