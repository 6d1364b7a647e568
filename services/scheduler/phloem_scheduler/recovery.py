"""The first moments of a lead: what went on under the former leader comes back before anything new is taken."""

from __future__ import annotations

from collections.abc import Iterable

RECOVERY_S = 2.0
"""Longest that new requests are kept out: a gateway that can't be heard must not close the door for those that can."""


class Recovery:
    """Which gateways have not yet opened again all that they hold."""

    def __init__(self) -> None:
        self._awaited: set[str] = set()
        self._known_so_far: set[str] = set()  # gateways of whose list, as far as it has come, nothing is unknown here
        self._until = 0.0

    def begin(self, gateways: Iterable[str], now: float) -> None:
        """We lead from now on; these gateways are there."""
        self._awaited = set(gateways)
        self._until = now + RECOVERY_S

    def listed(self, gateway: str, part: int, parts: int, complete: bool) -> None:
        """A part of what a gateway holds came; complete: all in it is known here."""
        if part == 0:
            self._known_so_far.add(gateway)
        if not complete:
            self._known_so_far.discard(gateway)
        if part == parts - 1 and gateway in self._known_so_far:
            self.caught_up(gateway)

    def caught_up(self, gateway: str) -> None:
        """Everything that it holds is known here, or it is gone."""
        self._awaited.discard(gateway)
        self._known_so_far.discard(gateway)

    def under_way(self, now: float) -> bool:
        """Whether new requests are still kept out."""
        return bool(self._awaited) and now < self._until
