"""Log-probabilities of raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .batch import Floats, Ints


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


def score(logits: Tensor, targets: Ints, top: int) -> Scores:
    """Scores of ``targets`` int64 [n] under float32 ``logits`` [n, vocab], with the ``top`` most likely of each."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    wanted = torch.as_tensor(targets).to(logits.device)[:, None]
    chosen = (logits.gather(1, wanted) - total).squeeze(1)
    best = logits.topk(min(top, logits.shape[-1]), dim=-1)
    return Scores(
        np.asarray(targets, dtype=np.int64),
        chosen.cpu().numpy(),
        best.indices.cpu().numpy(),
        (best.values - total).cpu().numpy(),
    )
