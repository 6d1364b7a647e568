"""Whether a row's logits depend on what is computed beside it."""

from __future__ import annotations

import numpy as np
import torch

from phloem_gpu_worker.load import PoolSize, make_runner
from phloem_gpu_worker.native import NativeDecoder

from .batches import batch_of, ids_of, pages_of


def assert_rows_are_their_own(decoder: NativeDecoder) -> None:
    """Six sequences alone and whole, then three times in random chunks beside each other: each logit has the same bits."""
    draw = np.random.default_rng(8)
    sequences = [ids_of(int(draw.integers(30, 60)), seed) for seed in range(6)]
    alone = []
    for ids in sequences:
        runner = make_runner(decoder, PoolSize(4, tokens=512))
        alone.append(runner.forward(batch_of([(ids, 0, pages_of(4, 1, len(ids)))], every=True)).logits)
    for _ in range(3):
        runner = make_runner(decoder, PoolSize(4, tokens=512))
        tables = [pages_of(4, 16 * number, len(ids)) for number, ids in enumerate(sequences)]
        done = [0] * len(sequences)
        while any(at < len(ids) for at, ids in zip(done, sequences, strict=True)):
            rows, which = [], []
            for number in draw.permutation(len(sequences)).tolist():
                left = len(sequences[number]) - done[number]
                if left == 0 or draw.random() < 0.3:
                    continue
                count = 1 if draw.random() < 0.5 else int(draw.integers(1, left + 1))
                rows.append((sequences[number][done[number] : done[number] + count], done[number], tables[number]))
                which.append((number, done[number] + count))
            if not rows:
                continue
            logits = runner.forward(batch_of(rows)).logits
            for (number, end), row in zip(which, logits, strict=True):
                assert torch.equal(row, alone[number][end - 1])
                done[number] = end
