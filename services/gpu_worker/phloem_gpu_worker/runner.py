"""Drive a model through the paged KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .attention import AttentionBackend
from .batch import Batch, Ints
from .decoder import Decoder
from .draws import Drawn, Draws
from .kv_pool import KvPool
from .logprobs import Scores, score, unscored
from .sampler import draw

_SCORED_AT_ONCE = 64
"""Prompt positions whose logits exist at a time: 64 x 150k x 4 bytes = 38 MB, where a whole chunk would take some 300."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a runner can hold. ``pages`` counts those that may be planned."""

    pages: int
    page_size: int
    context_length: int
    vocab_size: int
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Forward:
    """What a forward pass leaves behind."""

    logits: Any
    """For `Runner.draw` of the same runner: one row per `Batch.logits_at`."""
    scores: tuple[Scores, ...] = ()
    """One per `Batch.scores`."""

    def only(self, rows: Ints) -> Forward:
        """The same without the logits of other rows than these."""
        return Forward(self.logits[rows], self.scores)


class Runner(Protocol):
    """A device with a model on it. Calls come from one thread."""

    @property
    def capacity(self) -> Capacity: ...

    def forward(self, batch: Batch) -> Forward:
        """Compute KV of the batch's tokens into the pool, and what is needed to draw."""
        ...

    def draw(self, forward: Forward, draws: Draws) -> Drawn:
        """Draw one token per row of ``draws`` (rows of ``forward.logits``)."""
        ...

    def scrub(self, pages: Ints) -> None:
        """Make pages that a failed row may have filled with NaN harmless for their next owner."""
        ...


class TorchRunner:
    """A `Decoder`, its pool and an attention backend."""

    def __init__(self, decoder: Decoder, pool: KvPool, attention: AttentionBackend) -> None:
        self._decoder = decoder
        self._pool = pool
        self._attention = attention

    @property
    def capacity(self) -> Capacity:
        arch = self._decoder.arch
        dtype = str(self._decoder.dtype).removeprefix("torch.")
        device = str(self._decoder.device)
        return Capacity(self._pool.pages, self._pool.page_size, arch.context_length, arch.vocab_size, dtype, device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Forward:
        """See `Runner.forward`; the logits are float32 [S, vocab]."""
        addresses = self._to_device(self._addresses(batch))
        attend_layer = self._attention.prepare(batch, self._pool, self._decoder.arch.windows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.store(layer, addresses, k, v)
            return attend_layer(layer, q)

        hidden = self._decoder.hidden(self._to_device(batch.tokens), self._to_device(batch.positions), attend)
        scores = tuple(self._score(hidden, span.first, span.targets, span.top) for span in batch.scores)
        return Forward(self._decoder.logits(hidden.index_select(0, self._to_device(batch.logits_at))), scores)

    @torch.inference_mode()
    def draw(self, forward: Forward, draws: Draws) -> Drawn:
        return draw(forward.logits, draws)

    @torch.inference_mode()
    def scrub(self, pages: Ints) -> None:
        self._pool.scrub(self._to_device(pages))

    def _addresses(self, batch: Batch) -> Ints:
        """Flat pool address of each token [T]."""
        rows = np.repeat(np.arange(len(batch.counts)), batch.counts)
        size = self._pool.page_size
        return batch.tables[rows, batch.positions // size] * size + batch.positions % size

    def _score(self, hidden: Tensor, first: int, targets: Ints, top: int) -> Scores:
        parts = []
        for begin in range(0, len(targets), _SCORED_AT_ONCE):
            some = targets[begin : begin + _SCORED_AT_ONCE]
            at = first + begin
            parts.append(score(self._decoder.logits(hidden[at : at + len(some)]), some, top))
        return Scores.joined(parts) if parts else unscored(targets, top)

    def _to_device(self, values: Ints) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self._decoder.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._decoder.device, non_blocking=True)
