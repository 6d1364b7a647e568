"""Log-probabilities of raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .batch import Floats, Ints
from .transfer import fetch


@dataclass(frozen=True, slots=True)
class Scores:
    """Logprobs of n tokens and of the k most likely at each place. Most likely first."""

    ids: Ints
    """[n]"""
    logprobs: Floats
    """[n]"""
    top_ids: Ints
    """[n, k]"""
    top_logprobs: Floats
    """[n, k]"""

    @staticmethod
    def joined(parts: list[Scores]) -> Scores:
        """Several runs of consecutive tokens as one."""
        return Scores(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )


def unscored(ids: Ints, top: int) -> Scores:
    """Scores of tokens that nothing predicts: NaN, with ``top`` meaningless alternatives to keep the shape."""
    shape = (len(ids), top)
    nothing = np.full(shape, np.nan, dtype=np.float32)
    return Scores(ids, np.full(len(ids), np.nan, dtype=np.float32), np.zeros(shape, dtype=np.int64), nothing)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores that a device may still be computing; fields as in `Scores`."""

    ids: Tensor
    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def fetched(self) -> Scoring:
        """The same on the host, once the device's stream has passed this place."""
        return Scoring(fetch(self.ids), fetch(self.logprobs), fetch(self.top_ids), fetch(self.top_logprobs))

    def read(self) -> Scores:
        """Of a scoring on the host."""
        return Scores(self.ids.numpy(), self.logprobs.numpy(), self.top_ids.numpy(), self.top_logprobs.numpy())


def score(logits: Tensor, targets: Tensor, top: int) -> Scoring:
    """Scores of ``targets`` int64 [n] under float32 ``logits`` [n, vocab], with the ``top`` most likely of each."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = (logits.gather(1, targets[:, None]) - total).squeeze(1)
    best = logits.topk(min(top, logits.shape[-1]), dim=-1)
    return Scoring(targets, chosen, best.indices, best.values - total)


@dataclass(frozen=True, slots=True)
class SpanScoring:
    """Scorings of consecutive ``targets`` in parts."""

    targets: Ints
    top: int
    parts: tuple[Scoring, ...]

    def fetched(self) -> SpanScoring:
        """The same on the host, once the device's stream has passed this place."""
        return SpanScoring(self.targets, self.top, tuple(part.fetched() for part in self.parts))

    def read(self) -> Scores:
        """Of a scoring on the host."""
        return Scores.joined([part.read() for part in self.parts]) if self.parts else unscored(self.targets, self.top)
