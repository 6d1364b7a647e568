"""A clock by which others may be declared dead: it stands still whenever silence may be our own fault."""

from __future__ import annotations

TICK_S = 0.1
"""How often it is to be advanced."""
GRACE_S = 3.0
"""After our own connection returned, others may still be on their way back."""


class Patience:
    """Seconds during which others could have been heard. Sans-I/O: call `advance` every ``TICK_S``.

    Args:
        now: clock time of construction.
    """

    def __init__(self, now: float) -> None:
        self.elapsed = 0.0
        """The patient time, in seconds from 0."""
        self._last = now
        self._since: float | None = None
        self._recovering = False

    def advance(self, now: float, *, connected: bool, connected_since: float) -> None:
        """Let the time since the last call count, unless the bus is or was down, or our own loop stalled.

        A stall shows as a call that comes late; only two ticks of it count. The first connection of all needs no grace.
        """
        passed = now - self._last
        self._last = now
        if not connected:
            return
        if connected_since != self._since:  # also a connection that was lost and back between two ticks
            self._recovering = self._since is not None
            self._since = connected_since
        if self._recovering and now - connected_since < GRACE_S:
            return
        self._recovering = False
        self.elapsed += min(passed, 2 * TICK_S)
