"""Draws and scores by the compiled kernels: one call for all rows of a step.

A step's weights push everything else out of the caches, so whatever is touched here for the first time since is slow: with one row a call
into numpy or torch costs as much as the draw. Hence so few of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from .batch import Floats, Ints
from .draws import Drawn, Draws
from .kernels import abi
from .kernels.team import Kernels
from .logprobs import Scores, Scoring


@dataclass(frozen=True, slots=True)
class HostDrawing:
    """A `Drawing` that is done."""

    drawn: Drawn
    largest: Floats

    @property
    def ids(self) -> Tensor:
        """See `Drawing.ids`."""
        return torch.from_numpy(self.drawn.ids)

    @property
    def best(self) -> Tensor:
        """See `Drawing.best`."""
        return torch.from_numpy(self.largest)

    @property
    def host_ids(self) -> Ints:
        """See `Drawing.host_ids`."""
        return self.drawn.ids

    def fetched(self) -> HostDrawing:
        """See `Drawing.fetched`."""
        return self

    def read(self) -> Drawn:
        """See `Drawing.read`."""
        return self.drawn


class KernelSampler:
    """A `Sampler` for float32 logits on the CPU. A row draws the same bit for bit alone, in any batch and with any threads."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._parameters: _Parameters | None = None

    def draw(self, logits: Tensor, draws: Draws, rows: Ints | None = None) -> HostDrawing:
        """See `Sampler.draw`."""
        logits = logits.contiguous()
        count = len(draws.temperature)
        ids = np.empty(count, dtype=np.int64)
        best = np.empty(count, dtype=np.float32)
        faults = np.empty(count, dtype=np.int8)
        if self._parameters is None or not self._parameters.are_of(draws):
            self._parameters = _Parameters(draws)
        held = _Held()
        struct = self._parameters.struct()
        struct.logits = logits.data_ptr()
        struct.at = None if rows is None else held(rows, np.int64)
        struct.positions = held(draws.positions, np.int64)
        struct.ids, struct.best, struct.faults = ids.ctypes.data, best.ctypes.data, faults.ctypes.data
        struct.vocab = logits.shape[-1]
        _add_edits(struct, draws, held)
        self._kernels.draw(struct)
        scored, scores = _NONE, None
        if (most := int(draws.logprobs.max(initial=-1))) >= 0:
            scored = np.flatnonzero(draws.logprobs >= 0)
            scores = self._score_rows(logits, torch.from_numpy(ids), most, scored, rows)
        return HostDrawing(Drawn(ids, faults, scored, scores), best)

    def score(self, logits: Tensor, targets: Tensor, top: int) -> Scoring:
        """See `Sampler.score`."""
        return self._score(logits.contiguous(), targets.contiguous(), top, None)

    def _score_rows(self, logits: Tensor, ids: Tensor, top: int, scored: Ints, rows: Ints | None) -> Scores:
        at = scored if rows is None else rows[scored]
        return self._score(logits, ids[torch.from_numpy(scored)], top, at).read()

    def _score(self, logits: Tensor, targets: Tensor, top: int, at: Ints | None) -> Scoring:
        """``at`` [n]: numbers of the rows of ``logits``; None = all."""
        count, vocab = len(targets), logits.shape[-1]
        top = min(top, vocab)
        scoring = Scoring(
            targets,
            torch.empty(count, dtype=torch.float32),
            torch.empty(count, top, dtype=torch.int64),
            torch.empty(count, top, dtype=torch.float32),
        )
        held = _Held()
        struct = abi.ScoresStruct(
            logits=logits.data_ptr(),
            at=None if at is None else held(at, np.int64),
            targets=targets.data_ptr(),
            logprobs=scoring.logprobs.data_ptr(),
            top_ids=scoring.top_ids.data_ptr(),
            top_logprobs=scoring.top_logprobs.data_ptr(),
            rows=count,
            vocab=vocab,
            top=top,
        )
        self._kernels.score(struct)
        return scoring


_NONE: Ints = np.empty(0, dtype=np.int64)


class _Parameters:
    """What of draws stays the same while the same sequences draw, as the kernels read it."""

    def __init__(self, draws: Draws) -> None:
        self._of = draws
        self._held = held = _Held()
        self._struct = abi.DrawsStruct(
            temperature=held(draws.temperature, np.float32),
            top_p=held(draws.top_p, np.float32),
            min_p=held(draws.min_p, np.float32),
            top_k=held(draws.top_k, np.int64),
            seeds=held(draws.seeds, np.uint64),
            children=held(draws.children, np.int64),
            rows=len(draws.temperature),
        )

    def are_of(self, draws: Draws) -> bool:
        """Whether these are the same arrays."""
        of = self._of
        return (
            draws.temperature is of.temperature
            and draws.top_p is of.top_p
            and draws.min_p is of.min_p
            and draws.top_k is of.top_k
            and draws.seeds is of.seeds
            and draws.children is of.children
        )

    def struct(self) -> abi.DrawsStruct:
        """A copy, to be completed for a step."""
        return abi.DrawsStruct.from_buffer_copy(self._struct)


class _Held(list[NDArray[Any]]):
    """Arrays that a call reads, kept alive until it has returned."""

    def __call__(self, values: NDArray[Any], dtype: DTypeLike) -> int:
        """The address of ``values`` as the kernels read them."""
        array = np.ascontiguousarray(values, dtype=dtype)
        self.append(array)
        return array.ctypes.data


def _add_edits(struct: abi.DrawsStruct, draws: Draws, held: _Held) -> None:
    if draws.penalties is not None:
        struct.penalised = len(draws.penalties.rows)
        struct.penalised_rows = held(draws.penalties.rows, np.int64)
        struct.penalised_ids = held(draws.penalties.ids, np.int64)
        struct.repetition = held(draws.penalties.repetition, np.float32)
        struct.subtract = held(draws.penalties.subtract, np.float32)
    if draws.biases is not None:
        struct.biased = len(draws.biases.rows)
        struct.biased_rows = held(draws.biases.rows, np.int64)
        struct.biased_ids = held(draws.biases.ids, np.int64)
        struct.biases = held(draws.biases.values, np.float32)
    if draws.masks is not None:
        struct.masked, struct.mask_words = draws.masks.bits.shape
        struct.masked_rows = held(draws.masks.rows, np.int64)
        struct.masks = held(draws.masks.bits, np.int32)
