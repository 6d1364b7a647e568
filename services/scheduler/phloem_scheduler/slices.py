"""Work that concerns many requests at once, done a slice per pass, so that no pass is long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class Slices:
    """Pieces of work in order of their coming. Each is an iterator that does one step whenever it is asked for the next.

    Args:
        steps: how many are done in one go.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._work: deque[Iterator[None]] = deque()

    def __bool__(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._work)

    def add(self, work: Iterator[None]) -> None:
        """Begin with work at once; if other work is under way, it comes after that."""
        self._work.append(work)
        if len(self._work) == 1:
            self.go_on()

    def go_on(self) -> None:
        """Do the next slice."""
        for _ in range(self._steps):
            while self._work and next(self._work[0], self) is self:
                self._work.popleft()
