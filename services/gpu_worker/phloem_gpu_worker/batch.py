"""What one forward pass works on, as the host describes it: plain numpy, ready to be copied to a device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoreSpan:
    """Prompt tokens of one row whose logprobs are wanted."""

    row: int
    first: int
    """Index in `Batch.tokens` of the token whose logits predict the first target."""
    targets: Ints
    """The tokens to be scored, one per consecutive index from ``first`` on."""
    position: int
    """Position in the sequence of the first target."""
    top: int
    """How many most likely alternatives are wanted per target."""
    leading: bool = False
    """The first token of the sequence is to be reported too, though nothing predicts it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step. Row i takes ``counts[i]`` consecutive tokens from position ``starts[i]``; tokens lie row after row.

    T tokens, R rows, S logits. ``tables[i]`` is row i's page table, padded with the pool's scratch page.
    """

    tokens: Ints
    """[T]; -1 - s stands for the newest token of slot s, which the step before may still be drawing: only the device knows it."""
    positions: Ints
    """[T]"""
    starts: Ints
    """[R]"""
    counts: Ints
    """[R], each at least 1."""
    tables: Ints
    """[R, most pages of a row]"""
    logits_at: Ints
    """[S] indices into ``tokens`` of those whose next token is wanted."""
    scores: tuple[ScoreSpan, ...] = field(default=())

    def last_pages(self, page_size: int) -> Ints:
        """[R], the page to which each row's last token is written."""
        at = (self.starts + self.counts - 1) // page_size
        pages: Ints = self.tables[np.arange(len(at)), at]
        return pages


def token_positions(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """For rows of ``counts`` tokens from ``starts`` on: each token's row [T] and position [T]."""
    rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return rows, np.arange(len(rows)) - (ends - counts)[rows] + starts[rows]
