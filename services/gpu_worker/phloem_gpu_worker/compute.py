"""From a batch to hidden states and logits, through a paged KV pool, and what draws from them: what a runner drives."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .attention import AttentionBackend
from .batch import Batch, Ints
from .decoder import Decoder
from .kv_pool import KvPool
from .outline import Outline
from .sampler import Sampler, TorchSampler
from .transfer import upload


class Compute(Protocol):
    """A model with a pool. Attributes: what it computes in and where, the pages that may be planned, what draws from its logits."""

    dtype: torch.dtype
    device: torch.device
    pages: int
    page_size: int
    sampler: Sampler

    @property
    def arch(self) -> Outline:
        """The model's shape."""
        ...

    def hidden(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Normalised last hidden states [T, hidden] of ``tokens`` int64 [T]; their K and V are in the pool then."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [n, vocab] of hidden states [n, hidden]."""
        ...

    def scrub(self, pages: Tensor) -> None:
        """Make what is not finite in these pages (int64 [n]) zero."""
        ...


class TorchCompute:
    """A `Decoder`, its pool and an attention backend: runs on any device, and is what the kernels are measured by."""

    def __init__(self, decoder: Decoder, pool: KvPool, attention: AttentionBackend) -> None:
        self.arch = decoder.arch
        self.dtype = decoder.dtype
        self.device = decoder.device
        self.pages = pool.pages
        self.page_size = pool.page_size
        self.sampler: Sampler = TorchSampler()
        self._decoder = decoder
        self._pool = pool
        self._attention = attention

    @torch.inference_mode()
    def hidden(self, batch: Batch, tokens: Tensor) -> Tensor:
        """See `Compute.hidden`."""
        at = upload(addresses(batch, self.page_size), self.device)
        attend_layer = self._attention.prepare(batch, self._pool, self.arch.windows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.store(layer, at, k, v)
            return attend_layer(layer, q)

        return self._decoder.hidden(tokens, upload(batch.positions, self.device), attend)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute.logits`."""
        return self._decoder.logits(hidden)

    @torch.inference_mode()
    def scrub(self, pages: Tensor) -> None:
        """See `Compute.scrub`."""
        self._pool.scrub(pages)


def addresses(batch: Batch, page_size: int) -> Ints:
    """Flat pool address of each token [T]."""
    rows = np.repeat(np.arange(len(batch.counts)), batch.counts)
    return batch.tables[rows, batch.positions // page_size] * page_size + batch.positions % page_size
