"""From a plan's rows to a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phloem_proto.messages import Plan

from .batch import Batch, Ints, ScoreSpan, token_positions
from .errors import BadPlan
from .slots import Slots


@dataclass(frozen=True, slots=True)
class Rows:
    """A plan's rows, checked against the slots: row i runs ``counts[i]`` tokens from ``starts[i]`` on."""

    slots: Ints
    decode: NDArray[np.bool_]
    """The row takes the slot's newest token, whatever it is."""
    starts: Ints
    counts: Ints
    draws: NDArray[np.bool_]
    """The row's known tokens are used up and the sequence wants a token."""


def read_rows(plan: Plan, slots: Slots, max_step_tokens: int) -> Rows:
    """The plan's rows. Raises `BadPlan` if they don't fit what the slots hold."""
    rows = np.frombuffer(plan.rows, dtype="<u4").astype(np.int64)
    given = np.frombuffer(plan.counts, dtype="<u4").astype(np.int64)
    if len(rows) != len(given) or len(np.unique(rows)) != len(rows):
        raise BadPlan("rows and counts must be equally long and rows distinct")
    if len(rows) and (rows.max() >= len(slots) or not slots.live[rows].all()):
        raise BadPlan("a row names a slot that is not live")
    decode = given == 0
    counts = np.where(decode, 1, given)
    starts = np.where(decode, slots.length[rows] - 1, slots.committed[rows])
    ends = starts + counts
    if (ends > slots.length[rows]).any() or (starts > slots.committed[rows]).any():
        raise BadPlan("a row takes more tokens than its slot knows, or leaves a gap in its KV")
    if (ends > slots.pages[rows] * slots.page_size).any():
        raise BadPlan("a row's pages do not cover its tokens")
    if counts.sum() > max_step_tokens:
        raise BadPlan(f"a plan of {counts.sum()} tokens exceeds the limit of {max_step_tokens}")
    draws = (ends == slots.length[rows]) & slots.draws[rows] & ~slots.failed[rows]
    if (slots.length[rows[draws]] >= slots.tokens.shape[1]).any():
        raise BadPlan("a row would draw beyond the context")
    return Rows(rows, decode, starts, counts, draws)


def lay_out(rows: Rows, slots: Slots, run: Ints, draw: Ints) -> Batch:
    """A batch of the rows numbered ``run``, with logits for those numbered ``draw`` (a part of ``run``, both ascending)."""
    chosen, starts, counts = rows.slots[run], rows.starts[run], rows.counts[run]
    index, positions = token_positions(starts, counts)
    tokens = slots.tokens[chosen[index], positions].astype(np.int64)
    widest = -(-int((starts + counts).max()) // slots.page_size)
    tables = slots.tables[chosen, :widest].astype(np.int64)
    ends = np.cumsum(counts) - 1
    return Batch(
        tokens, positions, starts, counts, tables, ends[np.searchsorted(run, draw)], _scores(rows, slots, run, ends)
    )


def _scores(rows: Rows, slots: Slots, run: Ints, ends: Ints) -> tuple[ScoreSpan, ...]:
    """Prompt tokens whose logprobs this step can tell: each is predicted by the token before it."""
    spans = []
    for place in np.flatnonzero(slots.scores[rows.slots[run]]).tolist():
        row = int(run[place])
        slot, start = int(rows.slots[row]), int(rows.starts[row])
        params = slots.params[slot]
        if rows.decode[row] or params is None:
            continue
        begin = max(start + 1, params.logprob_start, 1)
        end = min(start + int(rows.counts[row]) + 1, int(slots.prompt[slot]))
        if begin < end:
            first = int(ends[place]) - int(rows.counts[row]) + 1 + (begin - 1 - start)
            targets = slots.tokens[slot, begin:end].astype(np.int64)
            spans.append(ScoreSpan(row, first, targets, begin, params.prompt_logprobs))
    return tuple(spans)
