"""What clients ask for: requests with answers that are known beforehand, and when they come."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phloem_proto.codec import pack_ids


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One request."""

    ids: bytes
    """Packed prompt tokens."""
    answer: array[int]
    """What it yields: at least one token."""
    priority: int = 0
    label: str = ""
    """What a workload wants to know it by."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.ids) // 4

    @property
    def tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + len(self.answer)

    @property
    def text(self) -> bytes:
        """Packed tokens of prompt and answer: how a prompt that follows it begins."""
        return self.ids + pack_ids(self.answer)


class Clients(Protocol):
    """All clients of a run."""

    def due(self, now: float, waiting: int) -> list[Call]:
        """Those that come now; `waiting` have come and not started. Each call is returned once."""

    def next_at(self) -> float | None:
        """When somebody comes though nothing else happens; None if nobody does."""

    def ended(self, call: Call, now: float) -> None:
        """call has its whole answer."""


class Timetable:
    """Calls that come at given times."""

    def __init__(self, calls: Iterable[tuple[float, Call]] = ()) -> None:
        self._coming: list[tuple[float, int, Call]] = []
        self._added = 0
        for at, call in calls:
            self.add(at, call)

    def add(self, at: float, call: Call) -> None:
        """call comes at `at`; of those that come at once, in the order of adding."""
        heapq.heappush(self._coming, (at, self._added, call))
        self._added += 1

    def due(self, now: float, waiting: int) -> list[Call]:
        """See `Clients`."""
        calls = []
        while self._coming and self._coming[0][0] <= now:
            calls.append(heapq.heappop(self._coming)[2])
        return calls

    def next_at(self) -> float | None:
        """See `Clients`."""
        return self._coming[0][0] if self._coming else None


class Timed(Timetable):
    """Calls that ask for nothing more when they have ended."""

    def __init__(self, times: Sequence[float], calls: Sequence[Call]) -> None:
        super().__init__(zip(times, calls, strict=True))

    def ended(self, call: Call, now: float) -> None:
        """See `Clients`."""


class Window:
    """Calls in a fixed order, of which so many always wait: the next comes whenever one starts."""

    def __init__(self, calls: list[Call], visible: int) -> None:
        if visible < 1:
            raise ValueError("at least 1 request must be visible")
        self._calls = calls
        self._visible = visible
        self._at = 0

    def due(self, now: float, waiting: int) -> list[Call]:
        """See `Clients`."""
        start, self._at = self._at, min(len(self._calls), self._at + max(0, self._visible - waiting))
        return self._calls[start : self._at]

    def next_at(self) -> float | None:
        """See `Clients`."""
        return None

    def ended(self, call: Call, now: float) -> None:
        """See `Clients`."""
