"""A runner with sequences in its pool, to be stepped at will."""

from __future__ import annotations

import numpy as np

from phloem_gpu_worker.architecture import Architecture
from phloem_gpu_worker.batch import Batch, Ints, token_positions
from phloem_gpu_worker.decoder import Decoder
from phloem_gpu_worker.draws import Draws, Wanted
from phloem_gpu_worker.load import PoolSize, make_runner
from phloem_gpu_worker.native import NativeDecoder

from .limits import timed
from .plan import HardwarePlan


class Bed:
    """Steps of one model. A step is a forward pass and a greedy draw for each row, as a worker makes it."""

    def __init__(self, decoder: Decoder | NativeDecoder, plan: HardwarePlan) -> None:
        self._runner = make_runner(decoder, PoolSize(plan.page_size, plan.pool_tokens))
        self._plan = plan
        self._random = np.random.default_rng(plan.seed)
        self._vocab = decoder.arch.vocab_size

    def decode(self, rows: int) -> float:
        """Seconds of a step in which ``rows`` sequences get one token each."""
        plan = self._plan
        tables = np.arange(rows * plan.row_pages, dtype=np.int64).reshape(rows, plan.row_pages)
        return self._step(np.full(rows, plan.context, dtype=np.int64), np.ones(rows, dtype=np.int64), tables)

    def prefill(self, tokens: int) -> float:
        """Seconds of a step that computes a prompt of ``tokens`` and draws what follows it."""
        pages = -(-tokens // self._plan.page_size)
        starts, counts = np.zeros(1, dtype=np.int64), np.array([tokens], dtype=np.int64)
        return self._step(starts, counts, np.arange(pages, dtype=np.int64)[None])

    def close(self) -> None:
        """End what helps the runner."""
        self._runner.close()

    def _step(self, starts: Ints, counts: Ints, tables: Ints) -> float:
        tokens = self._random.integers(0, self._vocab, int(counts.sum()))
        batch = Batch(
            tokens, token_positions(starts, counts)[1], starts, counts, tables, logits_at=np.cumsum(counts) - 1
        )
        wanted = Wanted(_greedy(len(counts)), np.arange(len(counts), dtype=np.int64))
        return timed(lambda: self._runner.draw(self._runner.forward(batch), wanted).result())


def _greedy(rows: int) -> Draws:
    zeros, ones = np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.float32)
    return Draws(
        temperature=np.zeros(rows, dtype=np.float32),
        top_p=ones,
        top_k=zeros - 1,
        min_p=np.zeros(rows, dtype=np.float32),
        seeds=np.zeros(rows, dtype=np.uint64),
        children=zeros,
        positions=zeros,
        logprobs=zeros - 1,
    )


def prompt_flops(arch: Architecture, tokens: int) -> int:
    """Multiplications and additions of a prompt: all matrices, attention of each token to those before it and itself, the head once."""
    block = sum(sum(one.outputs) * one.inputs for one in arch.projections.values())
    pairs = tokens * (tokens + 1) // 2
    attention = 2 * pairs * arch.heads * arch.head_dim
    return 2 * (arch.layers * (block * tokens + attention) + arch.vocab_size * arch.hidden_size)
