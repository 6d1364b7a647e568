"""What the scheduler knows of one worker: its cache, slots, rows and the plans it has not answered."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from phloem_proto.messages import WorkerProfile

from .cache import Cache
from .node import TOKEN_BYTES, Node
from .pace import Pace
from .rows import Row
from .tree import RadixTree


@dataclass(slots=True)
class SentPlan:
    """A plan that has no result yet."""

    step: int
    rows: list[Row]
    draws: bytearray  # 1 for each row that draws
    tokens: int  # known tokens and decode rows, for the pace


@dataclass(slots=True)
class Traffic:
    """What was placed on a worker since it joined."""

    choices: int = 0
    prompt_tokens: int = 0  # their known tokens
    cached_tokens: int = 0  # those of them found here


class WorkerState:
    """Everything here is dropped as a whole when the worker's session ends."""

    def __init__(
        self,
        instance: str,
        profile: WorkerProfile,
        tree: RadixTree,
        max_running: int,
        reuse: bool = True,
        eviction: str = "lru",
    ) -> None:
        self.instance = instance
        self.profile = profile
        self.cache = Cache(tree, profile.pages, name=instance, eviction=eviction, reuse=reuse)
        self.capacity = min(profile.context_length, profile.pages * profile.page_size)  # most tokens of one sequence
        self.rows: dict[int, Row] = {}  # by slot, in order of opening
        self.plans: deque[SentPlan] = deque()
        self.closes: list[int] = []  # slots for the next plan to empty
        self.step = 0
        self.pace = Pace(profile.max_step_tokens)
        self.traffic = Traffic()
        # Each decode row takes a token of the step; a page of it is kept for prompts, so that these always advance.
        self._slots = list(range(max(1, min(profile.slots, profile.max_step_tokens - profile.page_size, max_running))))
        self._generations = [0] * len(self._slots)

    @property
    def slots(self) -> int:
        """Rows that can be open at once."""
        return len(self._generations)

    @property
    def free_slots(self) -> int:
        """Rows that can still be opened."""
        return len(self._slots)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing is due, nothing is to be told."""
        return not (self.rows or self.plans or self.closes)

    @property
    def backlog(self) -> int:
        """Known tokens of its rows that no plan has yet."""
        return sum(row.known_tokens - row.computed for row in self.rows.values() if row.extending)

    def take_slot(self) -> int:
        """The lowest free slot: keeps the worker's live slots together."""
        return heapq.heappop(self._slots)

    def next_generation(self, slot: int) -> int:
        """Count one more use of slot."""
        self._generations[slot] += 1
        return self._generations[slot]

    def open(self, row: Row) -> None:
        """row has its slot: whatever it is about to compute, others wait for."""
        self.rows[row.slot] = row
        if row.target is not None:
            self.cache.tree.compute(self.cache.shelf, row.target, row)

    def first_uncomputed(self, row: Row) -> Node | None:
        """The first node of row's prompt that row is about to compute; None if there is none."""
        step, above = row.target, None
        shelf = self.cache.shelf
        while step is not None and step.parent is not None and shelf not in step.copies:
            step, above = step.parent, step
        return above if above is not None and above.computing.get(shelf) is row else None

    def publish(self, row: Row) -> None:
        """Put row's filled pages into the tree, unless this worker has another copy of them there already."""
        end, start, size = row.filled_pages, row.tree_pages, self.cache.page_size
        if end <= start or row.private or not self.cache.reuse:
            return
        key = row.choice.packed(start * size, end * size)
        if self.cache.has_next(row.node, key[: size * TOKEN_BYTES]):
            row.private = True
            if row.target is not None:
                self.cache.tree.pause(self.cache.shelf, row.target, row)
        else:
            priority = row.choice.request.priority
            row.node = self.cache.extend(row.node, key, row.table[start:end], priority).node
            row.tree_pages = end

    def close(self, row: Row) -> None:
        """Take the slot from row: filled pages go to the tree, the others become free, from the next plan on."""
        end, start, size = row.filled_pages, row.tree_pages, self.cache.page_size
        own = row.table[start:]
        if end > start:
            key = row.choice.packed(start * size, end * size)
            extension = self.cache.extend(row.node, key, row.table[start:end], row.choice.request.priority)
            row.node = extension.node
            own = row.table[start : start + extension.present] + row.table[end:]
        self._let_go(row)
        self.cache.give_back(own)
        row.opened = False
        del self.rows[row.slot]
        self.closes.append(row.slot)
        heapq.heappush(self._slots, row.slot)

    def abandon(self) -> None:
        """The session is over: nobody uses its cache any more. What is in the tree still has to be evicted."""
        for row in self.rows.values():
            self._let_go(row)
            self.cache.give_back(row.table[row.tree_pages :])
        self.rows.clear()
        self.plans.clear()

    def _let_go(self, row: Row) -> None:
        """row uses its path no more, and computes nothing."""
        if row.target is not None:
            self.cache.tree.leave(self.cache.shelf, row.target, row)
            row.target = None
        self.cache.release(row.node)

    def check(self) -> None:
        """Raise AssertionError if rows, slots and pages contradict each other. Linear: for tests and for an idle service."""
        self.cache.check()
        assert self.cache.pool.held == sum(len(row.table) - row.tree_pages for row in self.rows.values())
        assert len(self.rows) + len(self._slots) == len(self._generations)
        in_flight = sum(row.opened for plan in self.plans for row in plan.rows)
        assert in_flight == sum(row.in_flight for row in self.rows.values())
        for row in self.rows.values():
            assert len(row.table) * self.cache.page_size >= (row.computed if row.extending else row.planned - 1)
