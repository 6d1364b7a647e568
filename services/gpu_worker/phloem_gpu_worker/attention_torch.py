"""Attention with torch's fused kernel: rows of one token together over gathered pages, longer rows one by one.

Rows of one token (decoding) are grouped by length, doubling from group to group, so that padding costs at most half of the reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttendLayer, causal_mask
from .batch import Batch, Ints
from .kv_pool import KvPool
from .transfer import upload

_SHORTEST_GROUP = 128
"""Rows up to this many tokens share one group: below it, launching a kernel costs more than padding."""

Part = Callable[[int, Tensor, Tensor, float | None], None]
"""(layer, q [T, heads, D], output [T, heads, D], scale of scores): compute some rows' share of the output."""


class TorchAttention:
    """The default backend, on any device."""

    def prepare(self, batch: Batch, pool: KvPool, windows: tuple[int | None, ...]) -> AttendLayer:
        firsts = np.cumsum(batch.counts) - batch.counts
        single = batch.counts == 1
        lengths = batch.starts + batch.counts
        parts: list[Part] = []
        for members in _groups(np.flatnonzero(single), lengths):
            parts.append(_decode_part(batch, pool, windows, members, firsts))
        for row in np.flatnonzero(~single):
            parts.append(_extend_part(batch, pool, windows, int(row), int(firsts[row])))

        def attend(layer: int, q: Tensor, scale: float | None = None) -> Tensor:
            output = torch.empty_like(q)
            for part in parts:
                part(layer, q, output, scale)
            return output.flatten(1)

        return attend


def _groups(rows: Ints, lengths: Ints) -> list[Ints]:
    """Rows of similar length together, shorter first."""
    sizes = np.ceil(np.log2(np.maximum(lengths[rows] / _SHORTEST_GROUP, 1.0))).astype(np.int64)
    return [rows[sizes == size] for size in np.unique(sizes)]


def _decode_part(batch: Batch, pool: KvPool, windows: tuple[int | None, ...], rows: Ints, firsts: Ints) -> Part:
    """One query per row: q [b, kv_heads, group, D] against keys [b, kv_heads, L, D]."""
    device, dtype = pool.keys[0].device, pool.keys[0].dtype
    lengths = batch.starts[rows] + 1
    pages = -(-int(lengths.max()) // pool.page_size)
    table = upload(batch.tables[rows, :pages], device).flatten()
    at = upload(firsts[rows], device)
    everything = len(rows) == len(batch.tokens)
    masks = {
        window: _decode_mask(lengths, pages * pool.page_size, window, device, dtype)
        for window in dict.fromkeys(windows)
    }

    def part(layer: int, q: Tensor, output: Tensor, scale: float | None) -> None:
        kv_heads, size = pool.keys[layer].shape[2:]
        shape = (len(rows), pages * pool.page_size, kv_heads, size)
        k = pool.keys[layer].index_select(0, table).view(shape).transpose(1, 2)
        v = pool.values[layer].index_select(0, table).view(shape).transpose(1, 2)
        own = q if everything else q.index_select(0, at)
        result = F.scaled_dot_product_attention(
            own.reshape(len(rows), kv_heads, -1, size), k, v, attn_mask=masks[windows[layer]], scale=scale
        ).reshape(len(rows), -1, size)
        if everything:
            output.copy_(result)
        else:
            output.index_copy_(0, at, result)

    return part


def _decode_mask(lengths: Ints, width: int, window: int | None, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Additive mask [b, 1, 1, width]: 0 where visible, -inf elsewhere."""
    key = np.arange(width)[None, :]
    visible = key < lengths[:, None]
    if window is not None:
        visible &= key >= lengths[:, None] - window
    return _additive(upload(visible, device), dtype)[:, None, None]


def _extend_part(batch: Batch, pool: KvPool, windows: tuple[int | None, ...], row: int, first: int) -> Part:
    """One row of several queries, attending to what was there before and causally to itself."""
    device, dtype = pool.keys[0].device, pool.keys[0].dtype
    start, count = int(batch.starts[row]), int(batch.counts[row])
    length = start + count
    pages = -(-length // pool.page_size)
    table = upload(batch.tables[row, :pages], device)
    masks = {
        window: None
        if start == 0 and window is None
        else _additive(causal_mask(start, count, length, window, device), dtype)
        for window in dict.fromkeys(windows)
    }

    def part(layer: int, q: Tensor, output: Tensor, scale: float | None) -> None:
        k = pool.keys[layer].index_select(0, table).flatten(0, 1)[:length].transpose(0, 1)[None]
        v = pool.values[layer].index_select(0, table).flatten(0, 1)[:length].transpose(0, 1)[None]
        mask = masks[windows[layer]]
        own = q[first : first + count].transpose(0, 1)[None]
        result = F.scaled_dot_product_attention(
            own, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        output[first : first + count] = result[0].transpose(0, 1)

    return part


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
