"""Batches for a runner without a core: rows over page tables that the test chooses."""

from __future__ import annotations

import numpy as np

from phloem_gpu_worker.batch import Batch, ScoreSpan, token_positions

from .tiny_models import VOCAB


def pages_of(page_size: int, first: int, tokens: int) -> list[int]:
    """A page table in descending order, so that order of pages and of positions differ."""
    return list(range(first + tokens // page_size, first - 1, -1))


def ids_of(count: int, seed: int) -> list[int]:
    """Random tokens of a tiny model."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, VOCAB, count)]


def batch_of(
    rows: list[tuple[list[int], int, list[int]]], *, every: bool = False, scores: tuple[ScoreSpan, ...] = ()
) -> Batch:
    """Rows of (tokens, first position, page table); logits of the last token of each, or of ``every`` token."""
    starts = np.array([start for _, start, _ in rows], dtype=np.int64)
    counts = np.array([len(tokens) for tokens, _, _ in rows], dtype=np.int64)
    widest = max(len(table) for _, _, table in rows)
    tables = np.array([table + [table[-1]] * (widest - len(table)) for _, _, table in rows], dtype=np.int64)
    tokens = np.concatenate([np.array(tokens, dtype=np.int64) for tokens, _, _ in rows])
    at = np.arange(len(tokens)) if every else np.cumsum(counts) - 1
    return Batch(tokens, token_positions(starts, counts)[1], starts, counts, tables, at, scores)
