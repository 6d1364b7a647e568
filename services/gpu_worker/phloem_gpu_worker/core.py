"""The worker's core: plans in, results out. No bus, no clock, no event loop.

A plan is a difference to what the slots hold. `WorkerCore.begin` applies one (closes, opens and page appends first) and launches one forward
pass over its rows and one draw for each row whose known tokens are used up; `WorkerCore.finish` reads what was drawn. A plan may begin while
the one before is still being computed: what it needs of that is on the device (the newest tokens) or does not depend on the tokens' values
(lengths). Where it does depend on them, see `WorkerCore.may_begin` and `WorkerCore.draw`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phloem_proto.messages import Plan, Result, RowFailure

from .batch import Ints
from .draws import FINE, NOT_A_NUMBER, Drawn, Wanted
from .errors import BadPlan
from .grammar_desk import GrammarDesk, State
from .launched import Launched
from .layout import RowReader, extending_or, lay_out
from .outcome import Outcome, prompt_logprobs, row_logprobs
from .runner import Runner
from .slot_draws import Bits, DrawGatherer
from .slots import Slots


@dataclass(frozen=True, slots=True)
class Limits:
    """What the worker lets itself be asked for."""

    slots: int = 64
    """Sequences that can be live."""
    max_step_tokens: int = 8192
    """Tokens of one plan: bounds the memory of a forward pass."""


class WorkerCore:
    """Slots, matchers and the runner that computes.

    Args:
        runner: the model.
        limits: bounds on plans.
        eos_ids: tokens that end a sequence, which ``min_tokens`` forbids.
        context_length: most tokens of a sequence; at most the model's.
        desk: where grammars are matched; None refuses constrained sequences.
    """

    def __init__(
        self, runner: Runner, limits: Limits, eos_ids: tuple[int, ...], context_length: int, desk: GrammarDesk | None
    ) -> None:
        self.runner = runner
        self.limits = limits
        self.desk = desk
        capacity = runner.capacity
        self.slots = Slots(
            limits.slots, context_length, capacity.page_size, capacity.pages, capacity.vocab_size, eos_ids
        )
        self._reader = RowReader(self.slots, limits.max_step_tokens)
        self._draws = DrawGatherer(self.slots)
        self._launched: deque[Launched] = deque()
        self._mask_ms_before = 0.0

    @property
    def live(self) -> int:
        """Slots in use."""
        return int(self.slots.live.sum())

    def whose(self, plan: Plan) -> list[bytes]:
        """Requests that the rows of a plan belong to, which may not fit: rows of slots that don't exist are left out."""
        rows = np.frombuffer(plan.rows[: len(plan.rows) // 4 * 4], dtype="<u4")
        held: list[bytes] = self.slots.rids[rows[rows < len(self.slots)]].tolist()
        return held

    def reset(self) -> None:
        """Drop what is launched, empty all slots and forget all matchers, for a new session. Waits for the device."""
        self.runner.drain()
        self._launched.clear()
        for slot in np.flatnonzero(self.slots.live).tolist():
            self._close(slot)

    def execute(self, plan: Plan) -> Result:
        """Carry out one plan from beginning to end; nothing else may be launched. Raises as `begin` and `finish` do."""
        return self.finish(self.begin(plan))

    def may_begin(self, plan: Plan) -> bool:
        """Whether ``plan`` may begin before what is launched is finished.

        Not before the draw of the step in front of it is launched: its tokens are this plan's input. And not if it closes a constrained
        slot whose token is still being drawn: the matcher has yet to take that token, since the result says whether the grammar ended.
        """
        if not self._launched:
            return True
        if not self._launched[-1].drawn:
            return False
        if self.desk is None or not plan.closes:
            return True
        closes = np.frombuffer(plan.closes, dtype="<u4")
        unread = closes[closes < len(self.slots)]
        unread = unread[self.slots.unread[unread] > 0]
        return not any((held := self.slots.special[slot]) is not None and held.constrained for slot in unread.tolist())

    def begin(self, plan: Plan, launching: Callable[[], None] = lambda: None) -> Launched:
        """Apply a plan and launch its step, if `may_begin`. The draw is launched too, unless it has to be left to `draw`.

        Args:
            launching: called when all is ready for the forward pass; not at all if there is none.

        Raises:
            BadPlan: it does not fit what the slots hold. The session is then void; what was launched before can still be finished.
        """
        busy_before = bool(self.slots.live.any())
        self._change_slots(plan)
        rows = self._reader.read(plan)
        slots, at = self.slots, rows.slots
        step = Launched(plan.step, rows, slots.generation[at], slots.rids[at], busy_before, Outcome(len(at)))
        waiting = self._see_who_draws(step)
        run = step.drawing if rows.named.only_decode else extending_or(rows, step.drawing)
        if len(run):
            self._forward(step, run, launching)
            if not step.late and not (step.constrained and self.runner.asynchronous):
                self.draw(step)
        elif waiting and self.desk is not None and not self._launched:
            self.desk.await_any(waiting)
        self._launched.append(step)
        return step

    def draw(self, step: Launched) -> None:
        """Launch the draw of a step that `begin` left without one; the step before it must be finished.

        Left are draws that need the last token's value on the host (penalties count it, matchers take it), and draws with masks on a device
        that computes while they are filled.
        """
        drawing, masks = step.drawing, dict[int, Bits]()
        if step.late:
            drawing = drawing[self.slots.wants[step.rows.slots[drawing]]]
        if step.constrained:
            drawing, masks = self._mask(step, drawing)
        if len(drawing):
            slots = step.rows.slots
            chosen = slots if drawing is step.rows.named.numbers else slots[drawing]
            of = None if drawing is step.drawing else np.searchsorted(step.drawing, drawing)
            step.wanted = Wanted(self._draws.gather(chosen, masks), chosen, of)
            step.places = self.slots.expect(chosen)
        step.drawing = drawing
        step.pending = self.runner.draw(step.forward, step.wanted)

    def finish(self, step: Launched) -> Result:
        """Wait for the oldest launched step and take in what it drew. Raises what the device raises; the session is then void."""
        if not step.drawn:
            self.draw(step)
        forward_ms = idle_ms = 0.0
        if step.pending is not None:
            finished = step.pending.result()
            forward_ms, idle_ms = finished.busy_ms, finished.gap_ms if step.busy_before else 0.0
            for (span, first), scores in zip(step.spans, finished.scores, strict=True):
                step.outcome.logprobs.append(prompt_logprobs(span, scores, first))
        self._launched.popleft()
        if step.pending is not None and finished.drawn is not None:
            self._take(step, finished.drawn)
        return step.outcome.result(step.number, forward_ms=forward_ms, idle_ms=idle_ms, mask_ms=self._mask_ms())

    def _change_slots(self, plan: Plan) -> None:
        if not (plan.closes or plan.opens or plan.page_ids or plan.page_slots):
            return
        for slot in np.frombuffer(plan.closes, dtype="<u4").tolist():
            self._close(slot)
        for opened in plan.opens:
            self.slots.open(opened)
            if opened.grammar is not None:
                if self.desk is None:
                    raise BadPlan("this worker has no grammar engine")
                self.desk.open(opened.slot, opened.grammar, self.slots.output_ids(opened.slot))
        pages = np.frombuffer(plan.page_ids, dtype="<u4")
        owners = np.frombuffer(plan.page_slots, dtype="<u4")
        if len(pages) != len(owners):
            raise BadPlan("page_slots and page_ids must be equally long")
        self.slots.append_pages(owners, pages)

    def _close(self, slot: int) -> None:
        self.slots.close(slot)
        if self.desk is not None:
            self.desk.close(slot)

    def _see_who_draws(self, step: Launched) -> list[int]:
        """Note the rows that may draw, and what their draws need. Returns the slots whose matcher is not there yet."""
        rows = step.rows
        step.drawing = rows.drawing
        special = self.slots.is_special[rows.slots[rows.drawing]]
        if not special.any():
            return []
        draws = np.ones(len(rows.drawing), dtype=np.bool_)
        waiting: list[int] = []
        for place in np.flatnonzero(special).tolist():
            row = int(rows.drawing[place])
            slot = int(rows.slots[row])
            held = self.slots.special[slot]
            assert held is not None
            unread = bool(self.slots.unread[slot])
            if unread and (held.constrained or held.counts is not None):
                step.late = True
            if held.constrained:
                draws[place] = unread or self._is_ready(step, row, slot, waiting)
                if draws[place]:
                    step.constrained[slot] = row
        if not draws.all():
            step.drawing = rows.drawing[draws]
        return waiting

    def _is_ready(self, step: Launched, row: int, slot: int, waiting: list[int]) -> bool:
        """Whether a constrained row can draw as far as its matcher goes; if not, why not is noted."""
        assert self.desk is not None
        state = self.desk.state(slot)
        if state is State.FAILED:
            self._fail_by_grammar(step, row, slot)
        elif state is State.ENDED:
            step.outcome.grammar_ended.append(row)
        elif state is State.WAITING:
            waiting.append(slot)
        return state is State.READY

    def _forward(self, step: Launched, run: Ints, launching: Callable[[], None]) -> None:
        rows, slots = step.rows, self.slots
        batch = lay_out(rows, slots, run, step.drawing)
        if self.desk is not None and step.constrained:
            self.desk.begin([slot for slot in step.constrained if not slots.unread[slot]])
        launching()
        step.forward = self.runner.forward(batch)
        at = rows.slots if run is rows.named.numbers else rows.slots[run]
        slots.committed[at] = np.maximum(slots.committed[at], batch.starts + batch.counts)
        step.spans = tuple(
            (span, int(slots.tokens[rows.slots[span.row], 0]) if span.leading else None) for span in batch.scores
        )

    def _mask(self, step: Launched, drawing: Ints) -> tuple[Ints, dict[int, Bits]]:
        """The rows of ``drawing`` that need no mask or have theirs, and the masks by slot."""
        assert self.desk is not None
        ready = [
            slot
            for slot, row in step.constrained.items()
            if self.slots.wants[slot] and (not step.late or self._is_ready(step, row, slot, []))
        ]
        self.desk.begin(ready)
        masks = self.desk.collect(ready, step.forward.done)
        for slot in ready:
            if slot not in masks and self.desk.state(slot) is State.FAILED:
                self._fail_by_grammar(step, step.constrained[slot], slot)
        without = [slot for slot in step.constrained if slot not in masks]
        return (drawing[~np.isin(step.rows.slots[drawing], without)] if without else drawing), masks

    def _take(self, step: Launched, drawn: Drawn) -> None:
        """Take in what a step drew. Rows of sequences that ended before it mean nothing; slots that were closed since yield all the same."""
        assert step.wanted is not None
        chosen, drawing = step.wanted.slots, step.drawing
        fine, alive = drawn.fault == FINE, step.alive(chosen)
        yields = fine & alive
        current = self.slots.generation[chosen] == step.generations[drawing]
        if yields.all():
            step.outcome.tokens(drawing, drawn.ids)
        else:
            step.outcome.tokens(drawing[yields], drawn.ids[yields])
        kept = yields & current
        if kept.all():
            self.slots.settle(chosen, step.places, drawn.ids)
        else:
            self.slots.settle(chosen[kept], step.places[kept], drawn.ids[kept])
            for place in np.flatnonzero(alive & ~fine).tolist():
                self._fail(step, place, int(drawn.fault[place]), bool(current[place]))
        for number, place in enumerate(drawn.scored_rows.tolist()):
            if yields[place] and drawn.scores is not None:
                one, top = slice(number, number + 1), int(step.wanted.draws.logprobs[place])
                entry = row_logprobs(int(drawing[place]), False, int(step.places[place]), drawn.scores, one, top)
                step.outcome.logprobs.append(entry)
        for place in np.flatnonzero(kept & self.slots.is_special[chosen]).tolist():
            self._note_special(step, int(drawing[place]), int(chosen[place]), int(drawn.ids[place]))

    def _note_special(self, step: Launched, row: int, slot: int, token: int) -> None:
        special = self.slots.special[slot]
        assert special is not None
        if special.counts is not None:
            special.counts.add(token)
        if special.constrained and self.desk is not None:
            if self.desk.accept(slot, token):
                step.outcome.grammar_ended.append(row)
            elif self.desk.state(slot) is State.FAILED:
                self._fail_by_grammar(step, row, slot)

    def _fail(self, step: Launched, place: int, fault: int, current: bool) -> None:
        """A row drew nothing and never will; ``current``: its slot still holds its sequence."""
        assert step.wanted is not None
        slot, row = int(step.wanted.slots[place]), int(step.drawing[place])
        for later in self._launched:
            later.bury(slot, int(step.generations[row]))
        if current:
            self.slots.give_up(slot, int(step.places[place]))
        if fault != NOT_A_NUMBER:
            step.outcome.failures.append(RowFailure(row, "grammar_failed", "no token is allowed here"))
            return
        if current:
            self.runner.scrub(self.slots.tables[slot, : self.slots.pages[slot]].astype(np.int64))
        step.outcome.failures.append(RowFailure(row, "nan", "the model's output is not a number"))

    def _fail_by_grammar(self, step: Launched, row: int, slot: int) -> None:
        assert self.desk is not None
        trouble = self.desk.trouble(slot)
        self.slots.wants[slot] = False
        step.outcome.failures.append(RowFailure(row, trouble.code, trouble.message))

    def _mask_ms(self) -> float:
        if self.desk is None:
            return 0.0
        before, self._mask_ms_before = self._mask_ms_before, self.desk.spent_ms
        return self._mask_ms_before - before
