"""Builds the next plan of each worker that can take one: decode rows first, then prompts under way, then newcomers.

A plan is built as a draft: rows are added to it, pages taken for them, and at its end the pages that it fills enter the tree. They enter only
then, so that nobody reads a page in the plan that fills it; who needs such a page is parked until the next.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Plan, SlotOpen

from .actions import SendPlan
from .admission import Admission, Answer
from .chunks import Budget, chunk
from .lifecycle import Lifecycle
from .queue import WaitingQueue
from .requests import Choice
from .reserve import Reserve
from .retraction import victim
from .rows import Row
from .tree import TOKEN_BYTES
from .worker import SentPlan, WorkerState

# Known tokens in the slots that one plan opens: half of what the bus carries in a message.
MOST_OPEN_BYTES = 4 << 20


@dataclass(slots=True)
class Draft:
    """A plan under construction."""

    worker: WorkerState
    rows: list[Row] = field(default_factory=list)
    counts: array[int] = field(default_factory=lambda: array("I"))
    draws: bytearray = field(default_factory=bytearray)
    opens: list[SlotOpen] = field(default_factory=list)
    page_slots: array[int] = field(default_factory=lambda: array("I"))
    page_ids: array[int] = field(default_factory=lambda: array("I"))
    budget: int = 0  # known tokens it may still take
    open_bytes: int = 0  # of known tokens in `opens`
    extends: list[Row] = field(default_factory=list)

    def append_pages(self, row: Row, pages: array[int]) -> None:
        """Longer page table for a row whose slot the worker has."""
        row.table.extend(pages)
        self.page_ids.extend(pages)
        self.page_slots.extend([row.slot] * len(pages))

    def decode(self, row: Row) -> None:
        """One more draw from row's newest token."""
        self.rows.append(row)
        self.counts.append(0)
        self.draws.append(1)
        row.planned += 1
        row.quota -= 1
        row.in_flight += 1

    def has_space_for(self, choice: Choice) -> bool:
        """Whether the message stays small enough with choice's tokens in it. A single one always fits: it came in one message."""
        return not self.opens or self.open_bytes + choice.length * TOKEN_BYTES <= MOST_OPEN_BYTES

    def extend(self, row: Row, count: int) -> None:
        """The next `count` known tokens of row; its first draw if they are the last."""
        row.computed += count
        row.in_flight += 1
        self.rows.append(row)
        self.extends.append(row)
        self.counts.append(count)
        self.draws.append(0 if row.extending else 1)
        self.budget -= count
        if not row.extending:
            row.planned += 1
            row.quota -= 1


class Planner:
    """Decides who runs next on which worker."""

    def __init__(self, queue: WaitingQueue, life: Lifecycle, budget: Budget, depth: int, reserve: float) -> None:
        self.queue = queue
        self.life = life
        self.budget = budget
        self.depth = depth
        self.reserve = Reserve(reserve)
        self.admission = Admission(life, self.reserve)

    def plan(self, workers: Iterable[WorkerState]) -> list[SendPlan]:
        """Plans for all workers with fewer than `depth` in flight; none for those with nothing to do."""
        drafts = [Draft(worker) for worker in workers if len(worker.plans) < self.depth]
        for draft in drafts:
            self._decode(draft)
            draft.budget = self.budget.tokens(draft.worker, len(draft.rows))
            self._extend(draft)
        if drafts and len(self.queue):
            self._admit(drafts)
        return [SendPlan(draft.worker.instance, self._close(draft)) for draft in drafts if self._worth_sending(draft)]

    def _decode(self, draft: Draft) -> None:
        """A draw for every row that may have one; rows are retracted while pages for all of them can't be had."""
        worker = draft.worker
        cache, size = worker.cache, worker.cache.page_size
        while True:
            rows = [row for row in worker.rows.values() if row.computed >= row.known_tokens and row.quota > 0]
            short = [row for row in rows if row.planned > len(row.table) * size]
            if len(short) <= cache.room or not self._retract_one(worker):
                break
        pages = cache.take(len(short))
        assert pages is not None, "a single row does not fit, although its length was checked"
        for at, row in enumerate(short):
            draft.append_pages(row, pages[at : at + 1])
        for row in rows:
            draft.decode(row)
        if rows:
            self.reserve.decoded()

    def _retract_one(self, worker: WorkerState) -> bool:
        row = victim(worker.rows.values())
        if row is None:
            return False
        self.life.retract(row)
        self.reserve.retracted(worker.rows.values())
        return True

    def _extend(self, draft: Draft) -> None:
        """The next chunk of each prompt under way, in order of their slots' opening, as the budget lasts.

        Rows that wait for pages are retracted one by one if nothing else will ever free some.
        """
        worker = draft.worker
        while True:
            for row in [row for row in worker.rows.values() if row.extending]:
                if draft.budget <= 0:
                    return
                self._extend_row(draft, row)
            if draft.rows or worker.plans or not worker.rows or not self._retract_one(worker):
                return

    def _extend_row(self, draft: Draft, row: Row) -> None:
        cache, size = draft.worker.cache, draft.worker.cache.page_size
        reach = min(draft.budget, (len(row.table) + cache.room) * size - row.computed)
        count = chunk(row.computed, row.known_tokens, reach, size)
        if count > 0:
            pages = cache.take(cache.pages_for(row.computed + count) - len(row.table))
            assert pages is not None
            draft.append_pages(row, pages)
            draft.extend(row, count)

    def _admit(self, drafts: list[Draft]) -> None:
        """Take choices from the queue, in order, while one of the workers takes them; the least loaded is asked first."""
        while (choice := self.queue.pop()) is not None:
            answer = Answer.NO_ROOM
            for draft in sorted(drafts, key=load):
                answer = self._admit_to(draft, choice)
                if answer is not Answer.NO_ROOM:
                    break
            if answer is Answer.NO_ROOM:
                self.queue.add(choice)
                return

    def _admit_to(self, draft: Draft, choice: Choice) -> Answer:
        if not draft.has_space_for(choice):
            return Answer.NO_ROOM
        answer, row = self.admission.consider(draft.worker, choice, draft.budget)
        if row is None:
            return answer
        count = chunk(row.computed, row.known_tokens, draft.budget, draft.worker.cache.page_size)
        pages = draft.worker.cache.take(draft.worker.cache.pages_for(row.computed + count) - len(row.table))
        assert pages is not None, "admission checked that there is room"
        computed = row.computed
        row.table.extend(pages)
        draft.extend(row, count)
        draft.opens.append(slot_open(row, computed))
        draft.open_bytes += len(row.known)
        draft.worker.start_growing(row)
        return answer

    def _worth_sending(self, draft: Draft) -> bool:
        """A plan without rows only empties slots: sent once nothing else is under way."""
        return bool(draft.rows) or (bool(draft.worker.closes) and not draft.worker.plans)

    def _close(self, draft: Draft) -> Plan:
        """Number the plan, note it as sent, and let the pages it fills enter the tree."""
        worker = draft.worker
        worker.step += 1
        tokens = sum(draft.counts) + draft.counts.count(0)
        worker.plans.append(SentPlan(worker.step, draft.rows, draft.draws, tokens))
        closes, worker.closes = pack_ids(worker.closes), []
        for row in draft.extends:
            worker.stop_growing(row)
            worker.publish(row)
            worker.start_growing(row)
            self.life.enqueue(worker.wake(row))
        return Plan(
            step=worker.step,
            rows=pack_ids([row.slot for row in draft.rows]),
            counts=pack_ids(draft.counts),
            closes=closes,
            opens=tuple(draft.opens),
            page_slots=pack_ids(draft.page_slots),
            page_ids=pack_ids(draft.page_ids),
        )


def load(draft: Draft) -> tuple[int, int, str]:
    """Least loaded first: fewest rows, then most room."""
    return len(draft.worker.rows), -draft.worker.cache.room, draft.worker.instance


def slot_open(row: Row, committed: int) -> SlotOpen:
    """What the worker must know of row, at its first plan. committed: tokens from the cache."""
    request = row.choice.request
    params = request.params
    if row.choice.child and params.prompt_logprobs >= 0:
        params = msgspec.structs.replace(params, prompt_logprobs=-1)
    return SlotOpen(
        slot=row.slot,
        generation=row.generation,
        child=row.choice.child,
        ids=row.known,
        prompt_tokens=request.prompt_tokens,
        committed=committed,
        pages=pack_ids(row.table),
        params=params,
        seed=request.seed,
        grammar=request.grammar,
        rid=request.rid,
    )
