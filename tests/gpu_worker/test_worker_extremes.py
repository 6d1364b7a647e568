"""Sampling at the edges of every allowed parameter: a row that the gateway lets in always yields a token."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from phloem_gpu_worker.draws import FINE, Penalties
from phloem_gpu_worker.sampler import Sampler

from .test_worker_sampler import draw, draws_of

VOCAB = 3000
TEMPERATURES = [0.0, 5e-324, 1e-38, 9.9e-6, 1e-5, 1e-4, 2.0]
TOP_PS = [5e-324, 1e-45, 1e-38, 1e-7, 0.9999999, 1.0]
MIN_PS = [0.0, 5e-324, 1e-38, 0.9999999, 1.0]
TOP_KS = [-1, 1, VOCAB, 2**31 - 1]
PENALTIES = [0.01, 0.0100001, 2.0]
SUBTRACTED = [-2.0 * 100_000, 0.0, 2.0 * 100_000]
"""Frequency penalty times a count."""
LOGITS = {
    "usual": torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 5,
    "flat": torch.zeros(VOCAB),
    "steep": torch.linspace(-3e4, 3e4, VOCAB),
    "negative": torch.full((VOCAB,), -1e4),
    "almost equal": torch.linspace(10.0, 10.00001, VOCAB),
}


@pytest.mark.parametrize("kind", LOGITS)
def test_filters(sampler: Sampler, kind: str) -> None:
    grid = list(product(TEMPERATURES, TOP_PS, MIN_PS, TOP_KS))
    temperature, top_p, min_p, top_k = (np.array(column) for column in zip(*grid, strict=True))
    row = LOGITS[kind]
    drawn = draw(
        sampler,
        row.repeat(len(grid), 1),
        draws_of(len(grid), temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k),
    )
    assert (drawn.fault == FINE).all()
    assert drawn.ids.min() >= 0
    assert drawn.ids.max() < VOCAB
    # Whatever leaves only the most likely tokens draws one of them.
    only = (temperature < 1e-5) | (top_p < 1e-30) | (min_p == 1.0) | (top_k == 1)
    assert (row[torch.from_numpy(drawn.ids[only])] == row.max()).all()


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 2.0])
def test_penalties(sampler: Sampler, kind: str, temperature: float) -> None:
    grid = list(product(PENALTIES, SUBTRACTED))
    seen = np.arange(0, VOCAB, 7)
    rows = np.repeat(np.arange(len(grid)), len(seen))
    repetition, subtract = (np.array(column, dtype=np.float32)[rows] for column in zip(*grid, strict=True))
    penalties = Penalties(rows, np.tile(seen, len(grid)), repetition, subtract)
    drawn = draw(
        sampler,
        LOGITS[kind].repeat(len(grid), 1),
        draws_of(len(grid), temperature=temperature, top_p=0.9, penalties=penalties),
    )
    assert (drawn.fault == FINE).all()
    assert drawn.ids.max() < VOCAB
