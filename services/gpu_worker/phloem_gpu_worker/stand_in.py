"""A device without a model, for measuring everything else: each step takes a fixed time, tokens are a hash.

It behaves as a GPU does: launching returns at once, steps run back to back in the order of their launch, and a step begins when the one
before has ended or when it is launched, whichever is later. Only the news of a step's end is as late as a sleeping thread wakes; the
device's own time line is exact.

With a `Burner` it behaves as the CPU does instead: a step is computed at its launch, on the cores that everybody else needs too.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from .batch import Batch, Ints
from .burner import Burner
from .draws import FINE, Drawn, Wanted
from .logprobs import Scores, unscored
from .runner import Capacity, Finished
from .timeline import Waiter


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward pass on the stand-in's time line, in seconds of the performance counter."""

    ids: Ints
    scores: tuple[Scores, ...]
    gap_s: float
    began: float
    ended: float

    def done(self) -> bool:
        return time.perf_counter() >= self.ended


class StandInRunner:
    """Computes nothing. The next token is a hash of (newest token, its position), so equal prefixes continue equally.

    Args:
        step_s: duration of a forward pass in seconds, whatever its rows; with 0 it computes at launch, as the CPU does.
        burner: takes the place of ``step_s``: what computes a step at its launch.
        pages, page_size, context_length, vocab_size: what it claims to be.
    """

    def __init__(
        self,
        step_s: float,
        burner: Burner | None = None,
        /,
        *,
        pages: int = 8192,
        page_size: int = 16,
        context_length: int = 8192,
        vocab_size: int = 49152,
    ) -> None:
        self._step_s = step_s
        self._burner = burner
        self._capacity = Capacity(pages, page_size, context_length, vocab_size, "none", "stand-in")
        self._newest: dict[int, int] = {}
        """By slot, the token that was drawn last. Bounded by the worker's slots."""
        self._free_at: float | None = None
        self._waiter = Waiter("phloem-stand-in", _sleep_until)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def asynchronous(self) -> bool:
        return self._step_s > 0 and self._burner is None

    def forward(self, batch: Batch) -> _Forward:
        """Occupy the device for the time of a step. Prompt scores are NaN."""
        now = time.perf_counter()
        before = now if self._free_at is None else self._free_at
        began = max(now, before)
        at = batch.logits_at
        ids = next_token(self._known(batch.tokens[at]), batch.positions[at], self._capacity.vocab_size)
        scores = tuple(unscored(span.targets, span.top) for span in batch.scores)
        self._free_at = ended = self._end_of(began)
        return _Forward(ids, scores, began - before, began, ended)

    def draw(self, forward: _Forward, wanted: Wanted | None) -> Future[Finished]:
        """End the step; a draw itself takes no time."""
        assert self._free_at is not None
        drawn_at = max(time.perf_counter(), self._free_at)
        late_s = drawn_at - forward.ended
        self._free_at = drawn_at
        busy_s = forward.ended - forward.began
        finished = Finished(self._drawn(forward, wanted), forward.scores, busy_s * 1e3, (forward.gap_s + late_s) * 1e3)
        if self.asynchronous:
            return self._waiter.submit(drawn_at, lambda: finished)
        future: Future[Finished] = Future()
        future.set_result(finished)
        return future

    def scrub(self, pages: Ints) -> None:
        """There is nothing to scrub."""

    def drain(self) -> None:
        if self._free_at is not None:
            _sleep_until(self._free_at)

    def close(self) -> None:
        self._waiter.close()
        if self._burner is not None:
            self._burner.close()

    def _end_of(self, began: float) -> float:
        """When a step that begins then has been computed; what computes at launch has done so when this returns."""
        if self.asynchronous:
            return began + self._step_s
        if self._burner is not None:
            self._burner.burn()
        return time.perf_counter()

    def _known(self, tokens: Ints) -> Ints:
        """``tokens`` with those filled in that were still being drawn when the batch was laid out."""
        if not (tokens < 0).any():
            return tokens
        return np.array([token if token >= 0 else self._newest[-1 - token] for token in tokens.tolist()])

    def _drawn(self, forward: _Forward, wanted: Wanted | None) -> Drawn | None:
        if wanted is None:
            return None
        ids = forward.ids if wanted.rows is None else forward.ids[wanted.rows]
        self._newest.update(zip(wanted.slots.tolist(), ids.tolist(), strict=True))
        return Drawn(ids, np.full(len(ids), FINE, dtype=np.int8), np.empty(0, dtype=np.int64))


def _sleep_until(moment: float) -> None:
    pause = moment - time.perf_counter()
    if pause > 0:
        time.sleep(pause)


def next_token(tokens: Ints, positions: Ints, vocab_size: int) -> Ints:
    """The stand-in's token after ``tokens`` at ``positions``, in the upper half of the vocabulary, where no end token lies."""
    mixed = (tokens * 2654435761 + positions * 40503 + 12345) & 0xFFFFFFFF
    half = vocab_size // 2
    return half + (mixed >> 7) % (vocab_size - half)
