"""A device whose tokens depend on everything a real one's depend on: prompt, order, and the KV pages it was told to read."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from phloem_gpu_worker.batch import Batch, Ints, token_positions
from phloem_gpu_worker.draws import Drawn, Wanted
from phloem_gpu_worker.logprobs import Scores, score
from phloem_gpu_worker.runner import Capacity, Finished
from phloem_gpu_worker.sampler import draw

Words = NDArray[np.uint64]

_STEP_MS = 8.0
"""What a step reports as its time: the simulation's clock does not pass inside a step."""
_SPREAD = 8.0
"""Logits lie between 0 and this: neither flat nor nearly certain."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class HashForward:
    """A computed forward pass."""

    logits: NDArray[np.float32]
    """[S, vocab]"""
    scores: tuple[Scores, ...]

    def done(self) -> bool:
        return True


class HashRunner:
    """One layer without weights: a token's KV is a hash of it and its position, attention adds up all that the page table names, and the
    logits are a hash of the sum. A page that is missing, shared wrongly or reused too early changes every later token.

    Args:
        pages, page_size, context_length, vocab_size: what it holds.
        asynchronous: say so, and let callers name tokens that were only just drawn.
    """

    def __init__(
        self, *, pages: int, page_size: int, context_length: int, vocab_size: int, asynchronous: bool = False
    ) -> None:
        self._capacity = Capacity(pages, page_size, context_length, vocab_size, "float32", "simulated")
        self._asynchronous = asynchronous
        self._pool: Words = np.zeros((pages + 1) * page_size, dtype=np.uint64)
        self._newest: dict[int, int] = {}  # by slot
        self._vocab = np.arange(vocab_size, dtype=np.uint64) * _GOLDEN

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def asynchronous(self) -> bool:
        return self._asynchronous

    def forward(self, batch: Batch) -> HashForward:
        """Store the KV of all rows, then attend."""
        tokens = np.array([token if token >= 0 else self._newest[-1 - token] for token in batch.tokens.tolist()])
        rows, positions = token_positions(batch.starts, batch.counts)
        size = self._capacity.page_size
        addresses = batch.tables[rows, positions // size] * size + positions % size
        self._pool[addresses] = _mix(tokens.astype(np.uint64) * _GOLDEN + positions.astype(np.uint64))
        logits = self._logits(batch, rows, positions, batch.logits_at)
        scores = []
        for span in batch.scores:
            at = np.arange(span.first, span.first + len(span.targets))
            rated = torch.from_numpy(self._logits(batch, rows, positions, at))
            scores.append(score(rated, torch.from_numpy(span.targets), span.top).read())
        return HashForward(logits, tuple(scores))

    def draw(self, forward: HashForward, wanted: Wanted | None) -> Future[Finished]:
        """The real sampler over the hashed logits."""
        drawn: Drawn | None = None
        if wanted is not None:
            logits = forward.logits if wanted.rows is None else forward.logits[wanted.rows]
            drawn = draw(torch.from_numpy(logits.copy()), wanted.draws).read()
            self._newest.update(zip(wanted.slots.tolist(), drawn.ids.tolist(), strict=True))
        future: Future[Finished] = Future()
        future.set_result(Finished(drawn, forward.scores, _STEP_MS, 0.0))
        return future

    def scrub(self, pages: Ints) -> None:
        """Hashes are never NaN."""

    def drain(self) -> None:
        """Everything is computed at launch."""

    def close(self) -> None:
        """There are no threads."""

    def _logits(self, batch: Batch, rows: Ints, positions: Ints, at: Ints) -> NDArray[np.float32]:
        """float32 [S, vocab] after the tokens numbered ``at``."""
        size = self._capacity.page_size
        offsets = np.arange(size)
        sums = np.empty(len(at), dtype=np.uint64)
        for index, (row, position) in enumerate(zip(rows[at].tolist(), positions[at].tolist(), strict=True)):
            pages = batch.tables[row, : position // size + 1]
            seen = (pages[:, None] * size + offsets).reshape(-1)[: position + 1]
            sums[index] = self._pool[seen].sum(dtype=np.uint64)
        mixed = _mix(sums[:, None] + self._vocab[None, :])
        return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(_SPREAD / 2**24)


def _mix(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed
