"""From a plan's rows to a batch.

While sequences just decode, plan after plan names the same rows: what depends only on their names is kept from one plan to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phloem_proto.messages import Plan

from .batch import Batch, Ints, ScoreSpan, token_positions
from .errors import BadPlan
from .slots import Slots


@dataclass(frozen=True, slots=True)
class Named:
    """What a plan's row and count bytes say by themselves."""

    key: tuple[bytes, bytes]
    slots: Ints
    decode: NDArray[np.bool_]
    """The row takes the slot's newest token, whatever it is."""
    counts: Ints
    """Tokens the row runs, at least 1."""
    numbers: Ints
    """0, 1, ... for all rows."""
    only_decode: bool
    tokens: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A plan's rows, checked against the slots: row i runs ``counts[i]`` tokens from ``starts[i]`` on."""

    named: Named
    starts: Ints
    drawing: Ints
    """Numbers of the rows whose known tokens are used up and whose sequence wants a token, ascending."""

    @property
    def slots(self) -> Ints:
        return self.named.slots

    @property
    def counts(self) -> Ints:
        return self.named.counts


class RowReader:
    """Reads plans' rows; remembers the last plan's names."""

    def __init__(self, slots: Slots, max_step_tokens: int) -> None:
        self._slots = slots
        self._max_step_tokens = max_step_tokens
        self._last: Named | None = None

    def read(self, plan: Plan) -> Rows:
        """The plan's rows. Raises `BadPlan` if they don't fit what the slots hold."""
        slots = self._slots
        named = self._last
        if named is None or named.key != (plan.rows, plan.counts):
            self._last = named = _named(plan, len(slots))
        if named.tokens > self._max_step_tokens:
            raise BadPlan(f"a plan of {named.tokens} tokens exceeds the limit of {self._max_step_tokens}")
        length, committed = slots.length[named.slots], slots.committed[named.slots]
        starts = length - 1 if named.only_decode else np.where(named.decode, length - 1, committed)
        ends = starts + named.counts
        covered = slots.pages[named.slots] * slots.page_size
        bad = ~slots.live[named.slots] | (ends > length) | (starts > committed) | (ends > covered)
        bad |= ends >= slots.tokens.shape[1]
        if bad.any():
            row = int(bad.argmax())
            raise BadPlan(_what_is_wrong(int(named.slots[row]), slots, int(starts[row]), int(ends[row])))
        draws = slots.wants[named.slots] if named.only_decode else slots.wants[named.slots] & (ends == length)
        return Rows(named, starts, named.numbers if draws.all() else np.flatnonzero(draws))


def _named(plan: Plan, slots: int) -> Named:
    rows = np.frombuffer(plan.rows, dtype="<u4").astype(np.int64)
    given = np.frombuffer(plan.counts, dtype="<u4").astype(np.int64)
    if len(rows) != len(given) or len(np.unique(rows)) != len(rows):
        raise BadPlan("rows and counts must be equally long and rows distinct")
    if len(rows) and rows.max() >= slots:
        raise BadPlan(f"there is no slot {rows.max()}")
    decode = given == 0
    counts = np.where(decode, 1, given)
    return Named(
        (plan.rows, plan.counts), rows, decode, counts, np.arange(len(rows)), bool(decode.all()), int(counts.sum())
    )


def _what_is_wrong(slot: int, slots: Slots, start: int, end: int) -> str:
    if not slots.live[slot]:
        return f"a row names slot {slot}, which is not live"
    if end > slots.length[slot]:
        return f"a row takes more tokens than slot {slot} knows"
    if start > slots.committed[slot]:
        return f"a row leaves a gap in the KV of slot {slot}"
    if end > slots.pages[slot] * slots.page_size:
        return f"the pages of slot {slot} do not cover its row"
    return f"slot {slot} would go beyond the context"


def extending_or(rows: Rows, drawing: Ints) -> Ints:
    """Numbers of the rows that run: all that extend, and those that decode if they draw."""
    runs = ~rows.named.decode
    runs[drawing] = True
    return rows.named.numbers if runs.all() else np.flatnonzero(runs)


def lay_out(rows: Rows, slots: Slots, run: Ints, draw: Ints) -> Batch:
    """A batch of the rows numbered ``run``, with logits for those numbered ``draw`` (a part of ``run``, both ascending)."""
    everything = run is rows.named.numbers
    chosen = rows.slots if everything else rows.slots[run]
    starts = rows.starts if everything else rows.starts[run]
    counts = rows.counts if everything else rows.counts[run]
    widest = -(-int((starts + counts).max()) // slots.page_size)
    tables = slots.tables[chosen, :widest].astype(np.int64)
    if rows.named.only_decode:
        tokens = slots.tokens[chosen, starts].astype(np.int64)
        return Batch(tokens, starts, starts, counts, tables, np.arange(len(run)))
    index, positions = token_positions(starts, counts)
    tokens = slots.tokens[chosen[index], positions].astype(np.int64)
    ends = np.cumsum(counts) - 1
    return Batch(
        tokens, positions, starts, counts, tables, ends[np.searchsorted(run, draw)], _scores(rows, slots, run, ends)
    )


def _scores(rows: Rows, slots: Slots, run: Ints, ends: Ints) -> tuple[ScoreSpan, ...]:
    """Prompt tokens whose logprobs this step can tell: each is predicted by the token before it."""
    spans = []
    for place in np.flatnonzero(slots.scores[rows.slots[run]] & ~rows.named.decode[run]).tolist():
        row = int(run[place])
        slot, start, count = int(rows.slots[row]), int(rows.starts[row]), int(rows.counts[row])
        params = slots.params[slot]
        assert params is not None
        begin = max(start + 1, params.logprob_start, 1)
        end = min(start + count + 1, int(slots.prompt[slot]))
        leading = start == 0 and params.logprob_start == 0
        if begin < end or leading:
            first = int(ends[place]) - count + begin - start
            targets = slots.tokens[slot, begin:end].astype(np.int64)
            spans.append(ScoreSpan(row, first, targets, begin, params.prompt_logprobs, leading))
    return tuple(spans)
