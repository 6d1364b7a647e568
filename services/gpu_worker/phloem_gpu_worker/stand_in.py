"""A runner without a model, for measuring everything else: each step takes a fixed time, tokens are a hash."""

from __future__ import annotations

import time

import numpy as np

from .batch import Batch, Ints
from .draws import FINE, Drawn, Draws
from .logprobs import unscored
from .runner import Capacity, Forward

_SPIN_S = 0.0003
"""The end of a step is spun, not slept: a sleeping thread wakes up to this much late."""


class StandInRunner:
    """Computes nothing. The next token is a hash of (newest token, its position), so equal prefixes continue equally.

    Args:
        step_s: duration of a forward pass in seconds, whatever its rows.
        pages, page_size, context_length, vocab_size: what it claims to be.
    """

    def __init__(
        self,
        step_s: float,
        *,
        pages: int = 8192,
        page_size: int = 16,
        context_length: int = 8192,
        vocab_size: int = 49152,
    ) -> None:
        self._step_s = step_s
        self._capacity = Capacity(pages, page_size, context_length, vocab_size, "none", "stand-in")

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def forward(self, batch: Batch) -> Forward:
        """Let the time of a step pass. Prompt scores are NaN."""
        end = time.perf_counter() + self._step_s
        scores = tuple(unscored(span.targets, span.top) for span in batch.scores)
        at = batch.logits_at
        ids = next_token(batch.tokens[at], batch.positions[at], self._capacity.vocab_size)
        pause = end - time.perf_counter() - _SPIN_S
        if pause > 0:
            time.sleep(pause)
        while time.perf_counter() < end:
            pass
        return Forward(ids, scores)

    def draw(self, forward: Forward, draws: Draws) -> Drawn:
        ids: Ints = forward.logits
        return Drawn(ids, np.full(len(ids), FINE, dtype=np.int8), np.empty(0, dtype=np.int64))

    def scrub(self, pages: Ints) -> None:
        """There is nothing to scrub."""


def next_token(tokens: Ints, positions: Ints, vocab_size: int) -> Ints:
    """The stand-in's token after ``tokens`` at ``positions``, in the upper half of the vocabulary, where no end token lies."""
    mixed = (tokens * 2654435761 + positions * 40503 + 12345) & 0xFFFFFFFF
    half = vocab_size // 2
    return half + (mixed >> 7) % (vocab_size - half)
