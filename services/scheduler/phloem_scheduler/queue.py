"""The waiting queue: choices in the order of a policy."""

from __future__ import annotations

import heapq
from typing import Protocol

from .requests import Choice, Stage

Order = tuple[float, ...]


class Policy(Protocol):
    """Says who is next. The order of a choice must not change while it waits."""

    def order(self, choice: Choice) -> Order:
        """Smaller is sooner; no two choices may be equal."""
        ...


class FirstCome:
    """Higher priority first, then by arrival of the client's request; a retracted or replayed one thus keeps its place."""

    def order(self, choice: Choice) -> Order:
        request = choice.request
        return (-request.priority, request.arrival, request.number, choice.child)


POLICIES: dict[str, type[FirstCome]] = {"fcfs": FirstCome}


class WaitingQueue:
    """A heap of waiting choices. One that ends while it waits is skipped later; the heap is rebuilt when those are more than half."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._heap: list[tuple[Order, Choice]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, choice: Choice) -> None:
        """choice must be in stage waiting and not be in the queue."""
        heapq.heappush(self._heap, (self.policy.order(choice), choice))
        self._waiting += 1

    def pop(self) -> Choice | None:
        """Take out the first."""
        while self._heap:
            choice = heapq.heappop(self._heap)[1]
            if choice.stage is Stage.WAITING:
                self._waiting -= 1
                return choice
        return None

    def left(self) -> None:
        """A waiting choice has ended (its stage has changed already)."""
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + 64:
            self._heap = [entry for entry in self._heap if entry[1].stage is Stage.WAITING]
            heapq.heapify(self._heap)

    def tokens(self) -> int:
        """Tokens of all waiting choices, cached or not. Linear."""
        return sum(choice.length for _, choice in self._heap if choice.stage is Stage.WAITING)

    def in_order(self) -> list[Choice]:
        """All waiting choices, first one first. Sorts: for metrics and tests."""
        return [choice for _, choice in sorted(self._heap, key=lambda entry: entry[0]) if choice.stage is Stage.WAITING]
