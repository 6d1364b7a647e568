"""The worker's core: plans in, results out. No bus, no clock, no event loop.

A plan is a difference to what the slots hold. `WorkerCore.execute` carries out one plan: closes, opens and page appends first, then one
forward pass over the rows, then one draw for each row whose known tokens are used up. Plans may be queued in front of it in any number;
nothing of a plan takes effect before its own turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Plan, Result, RowFailure, RowLogprobs

from .batch import Ints, ScoreSpan
from .draws import FINE, NOT_A_NUMBER, Drawn
from .errors import BadPlan
from .grammar_desk import GrammarDesk, State
from .layout import RowReader, Rows, lay_out
from .logprobs import Scores, unscored
from .runner import Runner
from .slot_draws import DrawGatherer
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
        self._mask_ms_before = 0.0

    @property
    def live(self) -> int:
        """Slots in use."""
        return int(self.slots.live.sum())

    def reset(self) -> None:
        """Empty all slots and forget all matchers, for a new session."""
        for slot in np.flatnonzero(self.slots.live).tolist():
            self._close(slot)

    def execute(self, plan: Plan) -> Result:
        """Carry out one plan. ``forward_ms`` and ``idle_ms`` of the result are the caller's to fill in.

        Raises:
            BadPlan: it does not fit what the slots hold. The session is then void: `reset` before another plan.
        """
        self._change_slots(plan)
        rows = self._reader.read(plan)
        outcome = _Outcome(rows)
        drawing, constrained, waiting = self._who_draws(rows, outcome)
        run = drawing if rows.named.only_decode else _extending_or(rows, drawing)
        if len(run):
            self._run(rows, run, drawing, constrained, outcome)
        elif waiting and self.desk is not None:
            self.desk.await_any(waiting)
        return outcome.result(plan.step, self._mask_ms())

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

    def _who_draws(self, rows: Rows, outcome: _Outcome) -> tuple[Ints, list[int], list[int]]:
        """Numbers of the rows that draw in this step; constrained slots among them; slots whose matcher is not there yet."""
        special = self.slots.is_special[rows.slots[rows.drawing]]
        if self.desk is None or not special.any():
            return rows.drawing, [], []
        draws = np.ones(len(rows.drawing), dtype=np.bool_)
        constrained: list[int] = []
        waiting: list[int] = []
        for place in np.flatnonzero(special).tolist():
            row = int(rows.drawing[place])
            slot = int(rows.slots[row])
            held = self.slots.special[slot]
            if held is None or not held.constrained:
                continue
            state = self.desk.state(slot)
            draws[place] = state is State.READY
            if state is State.READY:
                constrained.append(slot)
            elif state is State.FAILED:
                self._fail_by_grammar(row, slot, outcome)
            elif state is State.ENDED:
                outcome.grammar_ended.append(row)
            else:
                waiting.append(slot)
        return (rows.drawing if draws.all() else rows.drawing[draws]), constrained, waiting

    def _run(self, rows: Rows, run: Ints, drawing: Ints, constrained: list[int], outcome: _Outcome) -> None:
        batch = lay_out(rows, self.slots, run, drawing)
        if self.desk is not None and constrained:
            self.desk.begin(constrained)
        forward = self.runner.forward(batch)
        at = rows.slots[run]
        self.slots.committed[at] = np.maximum(self.slots.committed[at], batch.starts + batch.counts)
        for span, scores in zip(batch.scores, forward.scores, strict=True):
            first = self.slots.tokens[rows.slots[span.row], :1] if span.leading else None
            outcome.logprobs.append(_prompt_logprobs(span, scores, first))
        masks = self.desk.collect(constrained) if self.desk is not None and constrained else {}
        late = [slot for slot in constrained if slot not in masks]
        if late:
            drawing, kept = self._without(rows, drawing, late, outcome)
            forward = forward.only(kept)
        if len(drawing):
            chosen = rows.slots if drawing is rows.named.numbers else rows.slots[drawing]
            drawn = self.runner.draw(forward, self._draws.gather(chosen, masks))
            self._commit(rows, drawing, chosen, drawn, outcome)

    def _without(self, rows: Rows, drawing: Ints, late: list[int], outcome: _Outcome) -> tuple[Ints, Ints]:
        """The rows that still draw once those of ``late`` slots are taken out, and their numbers within ``drawing``."""
        assert self.desk is not None
        out = np.isin(rows.slots[drawing], late)
        for row in drawing[out].tolist():
            slot = int(rows.slots[row])
            if self.desk.state(slot) is State.FAILED:
                self._fail_by_grammar(row, slot, outcome)
        kept = np.flatnonzero(~out)
        return drawing[kept], kept

    def _commit(self, rows: Rows, drawing: Ints, chosen: Ints, drawn: Drawn, outcome: _Outcome) -> None:
        fine = drawn.fault == FINE
        special = self.slots.is_special[chosen]
        if fine.all():
            self.slots.append(chosen, drawn.ids)
            outcome.tokens(drawing, drawn.ids)
            if not special.any():
                return
        else:
            self.slots.append(chosen[fine], drawn.ids[fine])
            outcome.tokens(drawing[fine], drawn.ids[fine])
            for place in np.flatnonzero(~fine).tolist():
                self._fail(int(drawing[place]), rows, int(drawn.fault[place]), outcome)
        for place, scored in enumerate(drawn.scored_rows.tolist()):
            row = int(drawing[scored])
            if fine[scored] and drawn.scores is not None:
                outcome.logprobs.append(self._output_logprobs(row, int(rows.slots[row]), place, drawn.scores))
        for place in np.flatnonzero(fine & special).tolist():
            row = int(drawing[place])
            self._note_special(row, int(rows.slots[row]), int(drawn.ids[place]), outcome)

    def _note_special(self, row: int, slot: int, token: int, outcome: _Outcome) -> None:
        special = self.slots.special[slot]
        assert special is not None
        if special.counts is not None:
            special.counts.add(token)
        if special.constrained and self.desk is not None:
            if self.desk.accept(slot, token):
                outcome.grammar_ended.append(row)
            elif self.desk.state(slot) is State.FAILED:
                self._fail_by_grammar(row, slot, outcome)

    def _output_logprobs(self, row: int, slot: int, place: int, scores: Scores) -> RowLogprobs:
        params = self.slots.params[slot]
        assert params is not None
        only = slice(place, place + 1)
        return _row_logprobs(row, False, int(self.slots.length[slot]) - 1, scores, only, params.logprobs)

    def _fail(self, row: int, rows: Rows, fault: int, outcome: _Outcome) -> None:
        slot = int(rows.slots[row])
        self.slots.wants[slot] = False
        if fault == NOT_A_NUMBER:
            pages = self.slots.tables[slot, : self.slots.pages[slot]].astype(np.int64)
            self.runner.scrub(pages)
            outcome.failures.append(RowFailure(row, "nan", "the model's output is not a number"))
        else:
            outcome.failures.append(RowFailure(row, "grammar_failed", "no token is allowed here"))

    def _fail_by_grammar(self, row: int, slot: int, outcome: _Outcome) -> None:
        assert self.desk is not None
        trouble = self.desk.trouble(slot)
        self.slots.wants[slot] = False
        outcome.failures.append(RowFailure(row, trouble.code, trouble.message))

    def _mask_ms(self) -> float:
        if self.desk is None:
            return 0.0
        before, self._mask_ms_before = self._mask_ms_before, self.desk.spent_ms
        return self._mask_ms_before - before


class _Outcome:
    """Collects what a step yields."""

    def __init__(self, rows: Rows) -> None:
        self._yields: NDArray[np.uint8] = np.zeros(len(rows.slots), dtype=np.uint8)
        self._ids = b""
        self.grammar_ended: list[int] = []
        self.logprobs: list[RowLogprobs] = []
        self.failures: list[RowFailure] = []

    def tokens(self, rows: Ints, ids: Ints) -> None:
        """These rows (ascending) yield one token each."""
        self._yields[rows] = 1
        self._ids = ids.astype("<u4").tobytes()

    def result(self, step: int, mask_ms: float) -> Result:
        return Result(
            step,
            self._yields.tobytes(),
            self._ids,
            pack_ids(sorted(self.grammar_ended)),
            tuple(self.logprobs),
            tuple(self.failures),
            mask_ms=mask_ms,
        )


def _extending_or(rows: Rows, drawing: Ints) -> Ints:
    """Numbers of the rows that run: all that extend, and those that decode if they draw."""
    runs = ~rows.named.decode
    runs[drawing] = True
    return rows.named.numbers if runs.all() else np.flatnonzero(runs)


def _prompt_logprobs(span: ScoreSpan, scores: Scores, first: NDArray[np.int32] | None) -> RowLogprobs:
    """``first``: the sequence's first token, if it is to be reported."""
    if first is None:
        return _row_logprobs(span.row, True, span.position, scores, slice(None), span.top)
    whole = Scores.joined([unscored(first.astype(np.int64), scores.top_ids.shape[1]), scores])
    return _row_logprobs(span.row, True, 0, whole, slice(None), span.top)


def _row_logprobs(row: int, prompt: bool, start: int, scores: Scores, part: slice, top: int) -> RowLogprobs:
    ids, values = scores.top_ids[part, :top], scores.top_logprobs[part, :top]
    return RowLogprobs(
        row,
        prompt,
        start,
        scores.ids[part].astype("<u4").tobytes(),
        scores.logprobs[part].astype("<f4").tobytes(),
        ids.shape[1],
        ids.astype("<u4").tobytes(),
        values.astype("<f4").tobytes(),
    )
