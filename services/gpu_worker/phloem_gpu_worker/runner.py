"""Drive a model through the paged KV pool."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .batch import Batch, Ints, ScoreSpan
from .compute import Compute
from .draws import Drawn, Wanted
from .logprobs import Scores, SpanScoring
from .timeline import CudaTimeline, HostTimeline, Timeline
from .transfer import upload

_SCORED_AT_ONCE = 64
"""Prompt positions whose logits exist at a time: 64 x 150k x 4 bytes = 38 MB, where a whole chunk would take some 300."""
_MOST_SLOTS = 4096
"""Slots whose newest tokens the device keeps: the most that ``--max-rows`` takes, 32 KB."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a runner can hold. ``pages`` counts those that may be planned."""

    pages: int
    page_size: int
    context_length: int
    vocab_size: int
    dtype: str
    device: str


class Forward(Protocol):
    """A forward pass that was launched; anything else about it is its runner's."""

    def done(self) -> bool:
        """Whether it has been computed."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that has been computed."""

    drawn: Drawn | None
    scores: tuple[Scores, ...]
    """One per `Batch.scores`."""
    busy_ms: float
    """Device time of the forward pass and the draw."""
    gap_ms: float
    """Time the device did nothing between the end of the step before (0 for the first) and the end of this one."""


class Runner(Protocol):
    """A device with a model on it. Calls come from one thread: for each step `forward`, then `draw`, then the next step's.

    What is launched is computed in that order. A step's `draw` may be launched before the one before it has been read: a batch names tokens
    that only the device knows yet (`Batch.tokens`).
    """

    @property
    def capacity(self) -> Capacity: ...

    @property
    def asynchronous(self) -> bool:
        """Whether launching returns before the step is computed, so that launching ahead keeps the device busy."""
        ...

    def forward(self, batch: Batch) -> Any:
        """Launch the computation of KV of the batch's tokens into the pool, and of what is needed to draw: a `Forward`."""
        ...

    def draw(self, forward: Any, wanted: Wanted | None) -> Future[Finished]:
        """Launch the draws and the end of the step. None = nothing is drawn. An error of the device becomes the future's."""
        ...

    def scrub(self, pages: Ints) -> None:
        """Make pages that a failed row may have filled with NaN harmless for their next owner."""
        ...

    def drain(self) -> None:
        """Wait until everything launched has been computed."""
        ...

    def close(self) -> None:
        """End helping threads, once everything launched has been computed."""
        ...


@dataclass(frozen=True, slots=True)
class TorchForward:
    """A forward pass of `TorchRunner`."""

    logits: Tensor
    """float32 [S, vocab]"""
    scores: tuple[SpanScoring, ...]
    began: Any
    ended: Any
    done: Callable[[], bool]


class TorchRunner:
    """Runs a `Compute`, and draws with its sampler."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._sampler = compute.sampler
        self._device = compute.device
        self._timeline: Timeline = HostTimeline() if self._device.type == "cpu" else CudaTimeline(self._device)
        self._newest = torch.zeros(_MOST_SLOTS, dtype=torch.int64, device=self._device)
        self._newest_here: Ints | None = self._newest.numpy() if self._device.type == "cpu" else None
        """The same, where it lies in the host's memory."""
        self._last_end: Any = None

    @property
    def capacity(self) -> Capacity:
        compute, arch = self._compute, self._compute.arch
        dtype = str(compute.dtype).removeprefix("torch.")
        return Capacity(
            compute.pages, compute.page_size, arch.context_length, arch.vocab_size, dtype, str(self._device)
        )

    @property
    def asynchronous(self) -> bool:
        return self._timeline.asynchronous

    def forward(self, batch: Batch) -> TorchForward:
        """See `Runner.forward`."""
        began = self._timeline.mark()
        hidden = self._compute.hidden(batch, self._tokens(batch.tokens))
        scores = tuple(self._score(hidden, span) for span in batch.scores)
        every = len(batch.logits_at) == len(batch.tokens)
        chosen = hidden if every else hidden.index_select(0, self._to_device(batch.logits_at))
        logits = self._compute.logits(chosen)
        ended = self._timeline.mark()
        return TorchForward(logits, scores, began, ended, lambda: self._timeline.passed(ended))

    def draw(self, forward: TorchForward, wanted: Wanted | None) -> Future[Finished]:
        """See `Runner.draw`."""
        line, began = self._timeline, self._timeline.mark()
        drawing = None
        if wanted is not None:
            drawing = self._sampler.draw(forward.logits, wanted.draws, wanted.rows)
            if self._newest_here is None:
                self._newest.index_copy_(0, self._to_device(wanted.slots), drawing.ids)
            drawing = drawing.fetched()
            if self._newest_here is not None:
                self._newest_here[wanted.slots] = drawing.host_ids
        scores = tuple(one.fetched() for one in forward.scores)
        ended = line.mark()
        before, self._last_end = self._last_end, ended

        def read() -> Finished:
            gap = 0.0 if before is None else line.ms(before, forward.began)
            return Finished(
                None if drawing is None else drawing.read(),
                tuple(one.read() for one in scores),
                line.ms(forward.began, forward.ended) + line.ms(began, ended),
                gap + line.ms(forward.ended, began),
            )

        return line.once_passed(ended, read)

    def scrub(self, pages: Ints) -> None:
        self._compute.scrub(self._to_device(pages))

    def drain(self) -> None:
        self._timeline.drain()

    def close(self) -> None:
        self._timeline.close()

    def _tokens(self, tokens: Ints) -> Tensor:
        """The tokens [T] of a batch, with those filled in that only the device knows."""
        given = self._to_device(tokens)
        if not (tokens < 0).any():
            return given
        return torch.where(given < 0, self._newest[(-1 - given).clamp(min=0)], given)

    def _score(self, hidden: Tensor, span: ScoreSpan) -> SpanScoring:
        parts = []
        for begin in range(0, len(span.targets), _SCORED_AT_ONCE):
            some = self._to_device(span.targets[begin : begin + _SCORED_AT_ONCE])
            at = span.first + begin
            logits = self._compute.logits(hidden[at : at + len(some)])
            parts.append(self._sampler.score(logits, some, span.top))
        return SpanScoring(span.targets, span.top, tuple(parts))

    def _to_device(self, values: Ints) -> Tensor:
        return upload(values, self._device)
