"""A model that ``transformers`` computes, as a `Compute`: everything but its attention is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import AttentionBackend
from .batch import Batch
from .compute import addresses
from .hf_attention import PoolPass, attending
from .kv_pool import KvPool
from .sampler import Sampler, TorchSampler
from .transfer import upload


@dataclass(frozen=True, slots=True)
class HfOutline:
    """An `Outline`, found out by running the model."""

    vocab_size: int
    context_length: int
    layers: int
    kv_heads: int
    head_dim: int
    """The largest of all keys and values."""

    @property
    def kv_bytes_per_token(self) -> int:
        """See `Outline.kv_bytes_per_token`."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class HfModel:
    """A loaded model in two parts; its attentions go to the `Pass` in whose `attending` they are called."""

    family: str
    """Its ``model_type``."""
    arch: HfOutline
    dtype: torch.dtype
    device: torch.device
    body: nn.Module
    """From ``input_ids`` and ``position_ids`` int64 [1, T] to ``last_hidden_state`` [1, T, hidden]."""
    head: Callable[[Tensor], Tensor]
    """From hidden states [n, hidden] to logits [n, vocab], scaled and capped as the model has it."""


class HfCompute:
    """An `HfModel`, its pool and an attention backend. The rows of a batch are one sequence for the model: only attention tells them apart."""

    def __init__(self, model: HfModel, pool: KvPool, attention: AttentionBackend) -> None:
        self.arch = model.arch
        self.dtype = model.dtype
        self.device = model.device
        self.pages = pool.pages
        self.page_size = pool.page_size
        self.sampler: Sampler = TorchSampler()
        self._model = model
        self._pool = pool
        self._attention = attention
        self._windows = (None,) * model.arch.layers

    @torch.inference_mode()
    def hidden(self, batch: Batch, tokens: Tensor) -> Tensor:
        """See `Compute.hidden`."""
        at = upload(addresses(batch, self.page_size), self.device)
        attend_layer = self._attention.prepare(batch, self._pool, self._windows)
        positions = upload(batch.positions, self.device)
        with attending(PoolPass(self._pool, at, attend_layer)):
            output = self._model.body(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        states: Tensor = output.last_hidden_state
        return states[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `Compute.logits`."""
        return self._model.head(hidden).float()

    @torch.inference_mode()
    def scrub(self, pages: Tensor) -> None:
        """See `Compute.scrub`."""
        self._pool.scrub(pages)
