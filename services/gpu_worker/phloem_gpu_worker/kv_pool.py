"""The paged KV pool: K and V of every layer, addressed by page."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from .outline import Outline


class KvPool:
    """``pages`` pages of ``page_size`` tokens, and one scratch page more.

    The scratch page (number ``pages``) pads page tables. It is never written and stays zero: padding is masked, but a masked NaN would
    still spoil a row (0 * NaN), so padding must never read what another row wrote.
    """

    def __init__(self, arch: Outline, pages: int, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (pages + 1, page_size, arch.kv_heads, arch.head_dim)
        self.pages = pages
        self._clean = device.type != "cpu"
        """Whether what is not a number is kept out: where steps are launched ahead, a page may change its owner before it is known that
        its last one's row failed, so that `scrub` would come too late."""
        self.page_size = page_size
        self.keys = [_zeros(shape, dtype, device) for _ in range(arch.layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(arch.layers)]

    @property
    def scratch_page(self) -> int:
        return self.pages

    def store(self, layer: int, at: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v [T, kv_heads, head_dim] at flat token addresses ``at`` int64 [T] (page * page_size + offset)."""
        if self._clean:
            k, v = (torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0) for part in (k, v))
        self.keys[layer].flatten(0, 1).index_copy_(0, at, k)
        self.values[layer].flatten(0, 1).index_copy_(0, at, v)

    def scrub(self, pages: Tensor) -> None:
        """Turn what is not finite in these pages (int64 [n]) into zeros, so that their next owner's masked tail is harmless."""
        scrub_pages((*self.keys, *self.values), pages)


def scrub_pages(pools: Iterable[Tensor], pages: Tensor) -> None:
    """Zeros for what is not finite in ``pages`` (int64 [n]) of each pool [pages, ...]."""
    for pool in pools:
        pool[pages] = torch.nan_to_num(pool[pages], nan=0.0, posinf=0.0, neginf=0.0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU from the system's own zero pages, so that a pool takes real memory only as far as it is used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
