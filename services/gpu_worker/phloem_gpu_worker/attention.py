"""The attention interface, and the reference backend: simple, slow, the oracle of the others."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .batch import Batch
from .kv_pool import KvPool


class AttendLayer(Protocol):
    """Attention of one layer; k and v of all rows are in the pool by now: one may read what another wrote."""

    def __call__(self, layer: int, q: Tensor, scale: float | None = None) -> Tensor:
        """q [T, heads, head_dim] -> [T, heads * head_dim]; scores are multiplied by ``scale``, head_dim**-0.5 if None."""
        ...


class AttentionBackend(Protocol):
    """Computes attention of a batch over the paged pool, causal, each layer with its own window."""

    def prepare(self, batch: Batch, pool: KvPool, windows: tuple[int | None, ...]) -> AttendLayer:
        """Do once per step what all layers share (index and mask tensors) and return the per-layer computation.

        Its results must depend on a row's own tokens only, up to rounding.
        """
        ...


class ReferenceAttention:
    """Row by row, in float32, with the softmax written out."""

    def prepare(self, batch: Batch, pool: KvPool, windows: tuple[int | None, ...]) -> AttendLayer:
        firsts = np.cumsum(batch.counts) - batch.counts

        def attend(layer: int, q: Tensor, scale: float | None = None) -> Tensor:
            outputs = []
            for row, first in enumerate(firsts):
                count, start = int(batch.counts[row]), int(batch.starts[row])
                table = torch.as_tensor(batch.tables[row], device=q.device)
                k = pool.keys[layer][table].flatten(0, 1)[: start + count]
                v = pool.values[layer][table].flatten(0, 1)[: start + count]
                outputs.append(_row_attention(q[first : first + count], k, v, start, windows[layer], scale))
            return torch.cat(outputs).to(q.dtype)

        return attend


def _row_attention(
    q: Tensor, k: Tensor, v: Tensor, start: int, window: int | None, scale: float | None = None
) -> Tensor:
    """q [S, heads, D] at positions from ``start`` on over k, v [L, kv_heads, D]: float32 [S, heads * D]."""
    group = q.shape[1] // k.shape[1]
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("shd,lhd->hsl", q.float(), keys) * (q.shape[-1] ** -0.5 if scale is None else scale)
    visible = causal_mask(start, q.shape[0], k.shape[0], window, q.device)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hsl,lhd->shd", weights, values).flatten(1)


def causal_mask(start: int, count: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """bool [count, length]: whether the query at position ``start + i`` sees key j."""
    query = torch.arange(start, start + count, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)
