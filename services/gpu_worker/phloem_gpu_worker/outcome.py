"""What a step yields, collected row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phloem_proto.codec import pack_ids
from phloem_proto.messages import Result, RowFailure, RowLogprobs

from .batch import Ints, ScoreSpan
from .logprobs import Scores, unscored


class Outcome:
    """Of a step with ``rows`` rows."""

    def __init__(self, rows: int) -> None:
        self._yields: NDArray[np.uint8] = np.zeros(rows, dtype=np.uint8)
        self._ids = b""
        self.grammar_ended: list[int] = []
        self.logprobs: list[RowLogprobs] = []
        self.failures: list[RowFailure] = []

    def tokens(self, rows: Ints, ids: Ints) -> None:
        """These rows (ascending) yield one token each."""
        self._yields[rows] = 1
        self._ids = ids.astype("<u4").tobytes()

    def result(self, step: int, *, forward_ms: float, idle_ms: float, mask_ms: float) -> Result:
        return Result(
            step,
            self._yields.tobytes(),
            self._ids,
            pack_ids(sorted(self.grammar_ended)),
            tuple(self.logprobs),
            tuple(self.failures),
            forward_ms=forward_ms,
            idle_ms=idle_ms,
            mask_ms=mask_ms,
        )


def prompt_logprobs(span: ScoreSpan, scores: Scores, first: int | None) -> RowLogprobs:
    """``first``: the sequence's first token, if it is to be reported."""
    if first is None:
        return row_logprobs(span.row, True, span.position, scores, slice(None), span.top)
    whole = Scores.joined([unscored(np.array([first]), scores.top_ids.shape[1]), scores])
    return row_logprobs(span.row, True, 0, whole, slice(None), span.top)


def row_logprobs(row: int, prompt: bool, start: int, scores: Scores, part: slice, top: int) -> RowLogprobs:
    """The ``part`` of ``scores`` as a row's logprobs from position ``start`` on, with at most ``top`` alternatives."""
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
