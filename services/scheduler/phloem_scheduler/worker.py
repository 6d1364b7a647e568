"""What the scheduler knows of one worker: its cache, slots, rows and the plans it has not answered."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from phloem_proto.messages import WorkerProfile

from .cache import Cache
from .pace import Pace
from .requests import Choice, Stage
from .rows import Row
from .tree import TOKEN_BYTES, common_length


@dataclass(slots=True)
class SentPlan:
    """A plan that has no result yet."""

    step: int
    rows: list[Row]
    draws: bytearray  # 1 for each row that draws
    tokens: int  # known tokens and decode rows, for the pace


class WorkerState:
    """Everything here is dropped as a whole when the worker's session ends."""

    def __init__(self, instance: str, profile: WorkerProfile, max_running: int, reuse: bool) -> None:
        self.instance = instance
        self.profile = profile
        self.cache = Cache(profile.pages, profile.page_size, reuse=reuse)
        self.capacity = min(profile.context_length, profile.pages * profile.page_size)  # most tokens of one sequence
        self.rows: dict[int, Row] = {}  # by slot, in order of opening
        self.plans: deque[SentPlan] = deque()
        self.closes: list[int] = []  # slots for the next plan to empty
        self.step = 0
        self.pace = Pace(profile.max_step_tokens)
        # (node, the page after it) -> the row that is about to compute that page.
        self.growing: dict[tuple[int, bytes], Row] = {}
        # Each decode row takes a token of the step; a page of it is kept for prompts, so that these always advance.
        self._slots = list(range(max(1, min(profile.slots, profile.max_step_tokens - profile.page_size, max_running))))
        self._generations = [0] * len(self._slots)

    @property
    def slots(self) -> int:
        """Rows that can be open at once."""
        return len(self._generations)

    @property
    def has_slot(self) -> bool:
        """Whether another row can be opened."""
        return bool(self._slots)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing is due, nothing is to be told."""
        return not (self.rows or self.plans or self.closes)

    def take_slot(self) -> int:
        """The lowest free slot: keeps the worker's live slots together."""
        return heapq.heappop(self._slots)

    def next_generation(self, slot: int) -> int:
        """Count one more use of slot."""
        self._generations[slot] += 1
        return self._generations[slot]

    def publish(self, row: Row) -> None:
        """Put row's filled pages into the tree, unless the tree has its own copy; then wake those who waited for them."""
        end, start, size = row.filled_pages, row.tree_pages, self.cache.page_size
        if end > start and not row.private and self.cache.reuse:
            key = row.choice.packed(start * size, end * size)
            if self.cache.tree.continues(row.node, key[: size * TOKEN_BYTES]):
                row.private = True
            else:
                row.node = self.cache.extend(row.node, key, row.table[start:end]).node
                row.tree_pages = end

    def close(self, row: Row) -> list[Choice]:
        """Take the slot from row: filled pages go to the tree, the others become free, from the next plan on. Returns choices to wake."""
        end, start, size = row.filled_pages, row.tree_pages, self.cache.page_size
        own = row.table[start:]
        if end > start:
            extension = self.cache.extend(row.node, row.choice.packed(start * size, end * size), row.table[start:end])
            row.node = extension.node
            own = row.table[start : start + extension.present] + row.table[end:]
        self.cache.release(row.node)
        self.cache.give_back(own)
        row.opened = False
        del self.rows[row.slot]
        self.closes.append(row.slot)
        heapq.heappush(self._slots, row.slot)
        self.stop_growing(row)
        return self.wake(row, everybody=True)

    def start_growing(self, row: Row) -> None:
        """Announce the whole page that row computes next, so that choices which share it wait for it instead of computing it too."""
        size = self.cache.page_size
        if not self.cache.reuse or row.private or row.known_tokens < (row.tree_pages + 1) * size:
            return
        start = row.tree_pages * size * TOKEN_BYTES
        key = (row.node.order, row.known[start : start + size * TOKEN_BYTES])
        if self.growing.setdefault(key, row) is row:
            row.grow_key = key

    def stop_growing(self, row: Row) -> None:
        """Withdraw the announcement."""
        if row.grow_key is not None:
            del self.growing[row.grow_key]
            row.grow_key = None

    def park(self, choice: Choice, leader: Row, known: bytes, limit: int, order: tuple[float, ...]) -> None:
        """Take choice (just popped from the queue) aside until leader has computed the whole pages that both begin with."""
        unit = self.cache.page_size * TOKEN_BYTES
        shared = common_length(known[: limit * TOKEN_BYTES], 0, leader.known, unit) // unit
        choice.move("parked")
        choice.parked_on = leader
        heapq.heappush(leader.followers, (shared, order, choice))

    def wake(self, leader: Row, everybody: bool = False) -> list[Choice]:
        """Choices whose shared pages are in the tree now (or all); the caller puts them back into the queue."""
        woken: list[Choice] = []
        everybody = everybody or leader.private or not leader.extending
        while leader.followers and (everybody or leader.followers[0][0] <= leader.tree_pages):
            choice = heapq.heappop(leader.followers)[2]
            if choice.stage is Stage.PARKED and choice.parked_on is leader:
                choice.parked_on = None
                choice.move("woken")
                woken.append(choice)
        return woken

    def check(self) -> None:
        """Raise AssertionError if rows, slots and pages contradict each other. Linear: for tests and for an idle service."""
        self.cache.check()
        assert self.cache.pool.held == sum(len(row.table) - row.tree_pages for row in self.rows.values())
        assert len(self.rows) + len(self._slots) == len(self._generations)
        in_flight = sum(row.opened for plan in self.plans for row in plan.rows)
        assert in_flight == sum(row.in_flight for row in self.rows.values())
        for row in self.rows.values():
            assert row.node.locks > 0
            assert len(row.table) * self.cache.page_size >= (row.computed if row.extending else row.planned - 1)
        if not self.rows:
            assert self.cache.tree.locked_pages == 0
            assert not self.growing
