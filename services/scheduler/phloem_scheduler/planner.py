"""Builds the next plan of each worker that can take one: decode rows first, then prompts under way, then newcomers.

A plan is built as a draft: rows are added to it and pages taken for them. The pages that a row fills enter the tree at once: prompt tokens are
known, and a worker writes all KV of a layer before it attends, so a sibling reads them in the same plan or in any later one. What a
row is still to compute others wait for; they can't be picked meanwhile, and cost nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Plan, SlotOpen

from .actions import SendPlan
from .admission import Admission, Answer
from .chunks import Budget, chunk
from .lifecycle import Lifecycle
from .node import TOKEN_BYTES
from .placement import Guard, Placement
from .preemption import may_go, victims
from .queue import WaitingQueue
from .requests import Choice
from .reserve import Reserve
from .retraction import victim
from .rows import Row
from .worker import SentPlan, WorkerState

# Known tokens in the slots that one plan opens: half of what the bus carries in a message.
MOST_OPEN_BYTES = 4 << 20
# Choices that one pass looks at: those that fit at once are limited by the budget, the others must not make a pass long.
MOST_LOOKED_AT = 256


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
    budget: int = 0  # known tokens it may still take; 0 once somebody found no place in it
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

    def __init__(
        self,
        queue: WaitingQueue,
        life: Lifecycle,
        budget: Budget,
        depth: int,
        reserve: float,
        preempt_above: int | None = None,
        guard: Guard | None = None,
        relieve: Callable[[WorkerState], bool] = lambda worker: False,
    ) -> None:
        self.queue = queue
        self.life = life
        self.budget = budget
        self.depth = depth
        self.reserve = Reserve(reserve)
        self.admission = Admission(life, self.reserve)
        self.preempt_above = preempt_above
        self.guard = guard or Guard()
        self.relieve = (
            relieve  # ends a lease on the worker's pages, if there is one: the last resort for who could not run at all
        )

    def plan(self, workers: Iterable[WorkerState]) -> list[SendPlan]:
        """Plans for all workers with fewer than `depth` in flight; none for those with nothing to do."""
        there = list(workers)
        drafts = [Draft(worker) for worker in there if len(worker.plans) < self.depth]
        if drafts and self.preempt_above is not None:
            self._preempt(there, [draft.worker for draft in drafts], self.preempt_above)
        for draft in drafts:
            self._decode(draft)
            prompts = sum(row.extending for row in draft.worker.rows.values())
            draft.budget = self.budget.tokens(draft.worker, len(draft.rows), prompts + len(self.queue) / len(there))
            self._extend(draft)
        if drafts and len(self.queue):
            self._admit(drafts, Placement(there, self.guard))
        return [SendPlan(draft.worker.instance, self._close(draft)) for draft in drafts if self._worth_sending(draft)]

    def _preempt(self, there: list[WorkerState], planned: list[WorkerState], threshold: int) -> None:
        """Make room for the first in the queue at the cost of rows of far lower priority, if it has none anywhere."""
        choice = self.queue.first()
        if choice is None or not any(may_go(worker, choice, threshold) for worker in planned):
            return
        assert choice.node is not None
        places = [place.worker for place in Placement(there, self.guard).rank(choice)]
        if any(self.admission.fits(worker, choice, worker.cache.cached(choice.node)) for worker in places):
            return
        for worker in places:
            rows = victims(worker, choice, self.admission, threshold) if worker in planned else []
            for row in rows:
                self.life.counters.preempted += 1
                self.life.retract(row)
            if rows:
                return

    def _decode(self, draft: Draft) -> None:
        """A draw for every row that may have one; rows are retracted while pages for all of them can't be had."""
        worker = draft.worker
        cache, size = worker.cache, worker.cache.page_size
        while True:
            rows = [row for row in worker.rows.values() if row.computed >= row.known_tokens and row.quota > 0]
            short = [row for row in rows if row.planned > len(row.table) * size]
            if len(short) <= cache.room or not self._retract_one(worker):
                break
        for row in short:
            pages = cache.take(1, row.table[-1] if row.table else None)
            assert pages is not None, "a single row does not fit, although its length was checked"
            draft.append_pages(row, pages)
        for row in rows:
            draft.decode(row)
        if rows:
            self.reserve.decoded()

    def _retract_one(self, worker: WorkerState) -> bool:
        row = victim(worker.rows.values())
        if row is None:
            return self.relieve(worker)
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
            pages = cache.take(
                cache.pages_for(row.computed + count) - len(row.table), row.table[-1] if row.table else None
            )
            assert pages is not None
            draft.append_pages(row, pages)
            draft.extend(row, count)
            draft.worker.publish(row)

    def _admit(self, drafts: list[Draft], placement: Placement) -> None:
        """Take choices from the queue, in order, until no plan takes more. On a worker where one lacks room nobody goes ahead of it."""
        of = {draft.worker: draft for draft in drafts}
        aside: list[Choice] = []
        for _ in range(MOST_LOOKED_AT):
            if not any(draft.budget > 0 and draft.worker.free_slots for draft in drafts):
                break
            choice = self.queue.first()
            if choice is None:
                break
            answer = self._place(choice, of, placement)
            if answer is Answer.NO_ROOM and not self._lease_yields(choice, placement):
                keep_for(choice, of, placement)
                answer = Answer.SOON
            if answer is Answer.SOON:
                self.queue.set_aside(choice)
                aside.append(choice)
        for choice in aside:
            self.queue.back(choice)

    def _lease_yields(self, choice: Choice, placement: Placement) -> bool:
        """Where nobody runs on any worker that can hold choice, only leases keep it out: end one. False if that is not so."""
        workers = [place.worker for place in placement.rank(choice)]
        if any(worker.rows or placement.loads[worker].claimed_slots for worker in workers):
            return False
        return any(self.relieve(worker) for worker in workers)

    def _place(self, choice: Choice, drafts: dict[WorkerState, Draft], placement: Placement) -> Answer:
        """Offer choice to the workers in order of their rank. One that will do soon is waited for: others would do it later still."""
        places = placement.rank(choice)
        if not places:  # too long for every worker there is now: any of them says so
            return self.admission.consider(next(iter(drafts)), choice, 0)[0]
        for at, place in enumerate(places):
            worker, draft = place.worker, drafts.get(place.worker)
            answer = Answer.NO_BUDGET
            if draft is not None and draft.budget > 0:
                answer = self._admit_to(draft, choice)
                if answer is Answer.ADMITTED:
                    row = draft.extends[-1]
                    placement.admitted(worker, row.known_tokens - row.computed)
                    self.life.counters.placed(place.reason if at == 0 else "room")
            if answer is Answer.NO_BUDGET:
                answer = self._await(worker, choice, placement)
            if answer is not Answer.NO_ROOM:
                return answer
        return Answer.NO_ROOM

    def _await(self, worker: WorkerState, choice: Choice, placement: Placement) -> Answer:
        """worker has no plan that takes choice now: it waits for the next one, if there will be room for it beside others who do."""
        assert choice.node is not None
        cached, load = worker.cache.cached(choice.node), placement.loads[worker]
        if not self.admission.fits(worker, choice, cached, load.claimed_slots, load.claimed_tokens):
            return Answer.NO_ROOM
        uncached = choice.length - cached.depth * worker.cache.page_size
        placement.awaited(worker, uncached, self.admission.need(worker, choice, cached))
        return Answer.SOON

    def _admit_to(self, draft: Draft, choice: Choice) -> Answer:
        answer, row = Answer.NO_BUDGET, None
        if draft.has_space_for(choice):
            answer, row = self.admission.consider(draft.worker, choice, draft.budget)
        if answer is Answer.NO_BUDGET:
            draft.budget = 0  # strictly in order: nobody goes ahead with the little that is left
        if row is None:
            return answer
        cache = draft.worker.cache
        count = chunk(row.computed, row.known_tokens, draft.budget, cache.page_size)
        pages = cache.take(cache.pages_for(row.computed + count) - len(row.table), row.table[-1] if row.table else None)
        assert pages is not None, "admission checked that there is room"
        computed = row.computed
        row.table.extend(pages)
        draft.extend(row, count)
        draft.opens.append(slot_open(row, computed))
        draft.open_bytes += len(row.known)
        draft.worker.publish(row)
        return answer

    def _worth_sending(self, draft: Draft) -> bool:
        """A plan without rows only empties slots: sent once nothing else is under way."""
        return bool(draft.rows) or (bool(draft.worker.closes) and not draft.worker.plans)

    def _close(self, draft: Draft) -> Plan:
        """Number the plan and note it as sent."""
        worker = draft.worker
        worker.step += 1
        tokens = sum(draft.counts) + draft.counts.count(0)
        worker.plans.append(SentPlan(worker.step, draft.rows, draft.draws, tokens))
        closes, worker.closes = pack_ids(worker.closes), []
        return Plan(
            step=worker.step,
            rows=pack_ids([row.slot for row in draft.rows]),
            counts=pack_ids(draft.counts),
            closes=closes,
            opens=tuple(draft.opens),
            page_slots=pack_ids(draft.page_slots),
            page_ids=pack_ids(draft.page_ids),
        )


def keep_for(choice: Choice, drafts: dict[WorkerState, Draft], placement: Placement) -> None:
    """choice has no room on any worker that could hold it: these take nobody else in this pass."""
    for place in placement.rank(choice):
        worker, draft = place.worker, drafts.get(place.worker)
        placement.loads[worker].claimed_slots = worker.slots
        if draft is not None:
            draft.budget = 0


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
