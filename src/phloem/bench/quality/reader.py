"""A model that reads and continues texts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from phloem_gpu_worker.batch import Batch, Ints, ScoreSpan, token_positions
from phloem_gpu_worker.decoder import Decoder
from phloem_gpu_worker.load import PoolSize, make_runner
from phloem_gpu_worker.logprobs import Scores
from phloem_gpu_worker.native import NativeDecoder

from .plan import QualityPlan


class Reader:
    """A runner whose pool holds as many sequences as the plan has prompts."""

    def __init__(self, decoder: Decoder | NativeDecoder, plan: QualityPlan) -> None:
        self._runner = make_runner(decoder, PoolSize(plan.page_size, plan.prompts * plan.pages * plan.page_size))
        self._pages = plan.pages

    def scores(self, ids: list[int]) -> Scores:
        """What the model thinks of each token but the first, and which it holds for the most likely one in its place."""
        span = ScoreSpan(0, 0, np.array(ids[1:], dtype=np.int64), 1, top=1)
        (scoring,) = self._runner.forward(self._batch([ids], np.zeros(1, dtype=np.int64), (span,))).scores
        return scoring.read()

    def continued(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """The ``tokens`` that follow each prompt if the most likely one is always taken. All together, as a worker has them."""
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        latest = self._latest(self._batch(prompts, np.zeros(len(prompts), dtype=np.int64)))
        found = [latest]
        for step in range(tokens - 1):
            latest = self._latest(self._batch([[int(token)] for token in latest], lengths + step))
            found.append(latest)
        columns: list[list[int]] = torch.stack(found, dim=1).tolist()
        return columns

    def close(self) -> None:
        """End what helps the runner."""
        self._runner.close()

    def _latest(self, batch: Batch) -> Tensor:
        return self._runner.forward(batch).logits.argmax(dim=1)

    def _batch(self, rows: list[list[int]], starts: Ints, scores: tuple[ScoreSpan, ...] = ()) -> Batch:
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        tables = np.arange(len(rows) * self._pages, dtype=np.int64).reshape(len(rows), self._pages)
        tokens = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
        return Batch(tokens, token_positions(starts, counts)[1], starts, counts, tables, np.cumsum(counts) - 1, scores)
