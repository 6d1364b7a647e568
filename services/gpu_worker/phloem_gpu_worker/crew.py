"""How many of the kernels' threads compute a step.

All of them must arrive before any goes on, dozens of times in a step, so one whose core is taken for a moment holds up the rest. A decode step
is short, and while it runs the other services handle the tokens of the one before: on few cores it is over sooner on fewer threads. How soon
depends on what else runs, which only the steps themselves can tell. The tokens are the same, bit for bit, on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LARGEST = 256
"""Tokens of a step: larger ones, which hold a part of a prompt, get all threads. They last long, and nobody waits for tokens meanwhile."""
TRIED = 4
"""Steps in a row that the other number is given a chance for."""
SOONEST, LATEST = 16, 2048
"""Steps between two such chances: twice as many after each that changed nothing."""
BETTER = 0.97
"""It is taken if its steps last at most so much of the others' time: less is noise."""
NEWEST = 0.2
"""Weight of the newest step in the mean that a number of threads is known by."""


@dataclass(slots=True)
class _Size:
    """What is known of steps of about one size."""

    threads: int
    """That are given to them."""
    seconds: float = 0.0
    """What such a step lasted lately; 0 = not known."""
    pause: int = SOONEST
    left: int = SOONEST
    """Steps until another number has its chance."""
    trial: list[float] = field(default_factory=list)
    """What steps of the chance lasted so far."""


class Crew:
    """Learns while steps are computed whether all threads or one fewer are quicker, for steps of each size (by powers of two).

    Args:
        most: how many threads there are.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[int, _Size] = {}

    def threads(self, tokens: int) -> int:
        """For a step of so many tokens."""
        if self._most == 1 or tokens > LARGEST:
            return self._most
        size = self._size(tokens)
        return size.threads if size.left else self._other(size)

    def lasted(self, tokens: int, seconds: float) -> None:
        """What a step lasted on as many threads as `threads` said."""
        if self._most == 1 or tokens > LARGEST:
            return
        size = self._size(tokens)
        if size.left:
            size.seconds += (seconds - size.seconds) * (NEWEST if size.seconds else 1.0)
            size.left -= 1
            return
        size.trial.append(seconds)
        if len(size.trial) == TRIED:
            self._judge(size)

    def _judge(self, size: _Size) -> None:
        # The median, without the first: its threads may have had to wake up.
        tried = sorted(size.trial[1:])[(TRIED - 1) // 2]
        if tried <= size.seconds * BETTER:
            size.threads, size.seconds, size.pause = self._other(size), tried, SOONEST
        else:
            size.pause = min(2 * size.pause, LATEST)
        size.left = size.pause
        size.trial.clear()

    def _other(self, size: _Size) -> int:
        return self._most - 1 if size.threads == self._most else self._most

    def _size(self, tokens: int) -> _Size:
        return self._sizes.setdefault(tokens.bit_length(), _Size(self._most))
