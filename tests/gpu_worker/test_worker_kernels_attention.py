"""Attention in place over the paged pool: right against the reference, and a query's bits its own whatever is computed beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from phloem_gpu_worker.attention import _row_attention
from phloem_gpu_worker.batch import Batch, token_positions

from .compiled import EACH_LEVEL, Heads, kernels, seeded

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LAYOUTS = [(6, 2, 16), (9, 3, 64), (4, 4, 32), (8, 1, 48), (16, 1, 16)]
"""Query heads, KV heads, head size: grouped, one for one, all on one."""


@dataclass(frozen=True)
class Sequence:
    """Keys and values [L, kv_heads, head_dim] (rounded to the dtype), queries [L, heads, head_dim], and the pages of all positions."""

    k: Tensor
    v: Tensor
    q: Tensor
    table: list[int]

    def __len__(self) -> int:
        return len(self.k)


class World:
    """Sequences in one pool, of which some begin with the pages of others."""

    def __init__(
        self, seed: int, level: str, dtype: torch.dtype, layout: tuple[int, int, int], page_size: int, lengths: list[int],
        shared: dict[int, tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """``shared``: sequence -> (earlier sequence, pages it begins with)."""
        draw, generator = seeded(seed)
        self.heads, self.kv_heads, self.size = layout
        self.page_size = page_size
        pages = sum(-(-length // page_size) for length in lengths)
        free = draw.permutation(pages).tolist()
        self.pool = Heads(
            kernels(level), heads=self.heads, kv_heads=self.kv_heads, head_dim=self.size, page_size=page_size,
            pages=pages + 1, dtype=dtype,
        )  # fmt: skip
        # What others left behind is finite, and must not count.
        for part in (self.pool.keys, self.pool.values):
            part.copy_(torch.randn(part.shape, generator=generator) * 100)
        self.sequences: list[Sequence] = []
        for number, length in enumerate(lengths):
            k, v = (
                torch.randn(length, self.kv_heads, self.size, generator=generator).to(dtype).float() for _ in range(2)
            )
            q = torch.randn(length, self.heads, self.size, generator=generator).to(dtype)
            table: list[int] = []
            if shared and number in shared:
                owner, count = self.sequences[shared[number][0]], shared[number][1]
                table = owner.table[:count]
                same = slice(count * page_size)
                k[same], v[same] = owner.k[same], owner.v[same]
            table = table + [free.pop() for _ in range(-(-length // page_size) - len(table))]
            self.sequences.append(Sequence(k, v, q, table))
        for number, sequence in enumerate(self.sequences):
            self.pool.store(self.batch([(number, 0, len(sequence))]), sequence.k, sequence.v)

    def batch(self, rows: list[tuple[int, int, int]]) -> Batch:
        """Rows of (sequence, start, end)."""
        starts = np.array([start for _, start, _ in rows], dtype=np.int64)
        counts = np.array([end - start for _, start, end in rows], dtype=np.int64)
        widest = max(-(-end // self.page_size) for _, _, end in rows)
        scratch = self.pool.keys.shape[1] - 1
        tables = [
            (self.sequences[number].table + [scratch] * widest)[: max(-(-end // self.page_size), 1)]
            for number, _, end in rows
        ]
        padded = np.array([table + [scratch] * (widest - len(table)) for table in tables], dtype=np.int64)
        tokens = np.zeros(int(counts.sum()), dtype=np.int64)
        return Batch(tokens, token_positions(starts, counts)[1], starts, counts, padded, np.arange(len(rows)))

    def attend(self, rows: list[tuple[int, int, int]]) -> list[Tensor]:
        """The kernels' answer for each row."""
        q = torch.cat([self.sequences[number].q[start:end] for number, start, end in rows])
        out = self.pool.attend(self.batch(rows), q)
        return list(torch.split(out, [end - start for _, start, end in rows]))

    def expected(self, row: tuple[int, int, int]) -> Tensor:
        number, start, end = row
        one = self.sequences[number]
        return _row_attention(one.q[start:end], one.k[:end], one.v[:end], start, None)


def check(world: World, rows: list[tuple[int, int, int]], dtype: torch.dtype) -> None:
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    for row, got in zip(rows, world.attend(rows), strict=True):
        torch.testing.assert_close(got.float(), world.expected(row), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ragged_rows_equal_the_reference(level: str, dtype: str, layout: tuple[int, int, int]) -> None:
    for seed, page_size in enumerate((1, 2, 8, 16, 64, 512)):
        world = World(seed, level, DTYPES[dtype], layout, page_size, [1, 17, 256, 300, 530, 700])
        rows = [(0, 0, 1), (1, 16, 17), (2, 0, 256), (3, 255, 300), (4, 529, 530), (5, 509, 515), (4, 511, 512)]
        check(world, rows, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [4, 16, 128])
def test_a_querys_bits_are_its_own(dtype: str, page_size: int) -> None:
    """Whole prompts, chunks of any size, single tokens, alone and beside others that share its pages: always the same bits."""
    per_block = 256 // page_size
    shared = {1: (0, 2 * per_block), 2: (0, 2 * per_block + 1), 3: (1, per_block), 4: (2, 1)}
    lengths = [800, 620, 660, 300, 400, 40]
    for seed in range(4):
        draw, _ = seeded(seed)
        world = World(seed, "auto", DTYPES[dtype], (9, 3, 64), page_size, lengths, shared)
        whole = [world.attend([(number, 0, length)])[0] for number, length in enumerate(lengths)]
        for _ in range(12):
            rows = []
            for number, length in enumerate(lengths):
                end = int(draw.integers(1, length + 1))
                rows.append((number, end - 1 if draw.random() < 0.6 else int(draw.integers(0, end)), end))
            order = draw.permutation(len(rows))[: int(draw.integers(1, len(rows) + 1))]
            chosen = [rows[i] for i in order]
            for (number, start, end), got in zip(chosen, world.attend(chosen), strict=True):
                assert torch.equal(got, whole[number][start:end])


def test_many_rows_that_share_a_long_prefix() -> None:
    """More queries than a tile takes, in groups that branch at several blocks."""
    lengths = [1100] + [1000 + 10 * i for i in range(20)] + [600] * 4
    shared = {number: (0, 32 if number % 2 else 48) for number in range(1, 21)} | dict.fromkeys(range(21, 25), (3, 32))
    world = World(9, "auto", torch.bfloat16, (9, 3, 64), 16, lengths, shared)
    rows = [(number, length - 1, length) for number, length in enumerate(lengths)]
    check(world, rows, torch.bfloat16)
    for row, got in zip(rows, world.attend(rows), strict=True):
        assert torch.equal(got, world.attend([row])[0])


def test_equal_rows_are_all_answered() -> None:
    """Two slots may hold the same sequence on the same pages: their last block too."""
    world = World(10, "auto", torch.float32, (6, 2, 16), 16, [512, 300], None)
    rows = [(0, 511, 512), (0, 511, 512), (1, 299, 300), (1, 299, 300), (0, 300, 301)]
    check(world, rows, torch.float32)
