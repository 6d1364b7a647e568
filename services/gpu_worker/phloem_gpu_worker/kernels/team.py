"""The kernels, loaded, with the threads that run them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from . import abi
from .build import NoKernels
from .memory import Buffers
from .packing import Packed

SPIN_S = 100e-6
"""How long a thread that waits spins before it sleeps: phases of a step are microseconds apart, steps are not."""


class Kernels:
    """Calls into a kernel library. One caller at a time: the threads are shared.

    Args:
        library: as `build.library` gives it.
        threads: how many work together, the caller among them.
        cores: where the others may run; empty = anywhere.

    Raises:
        NoKernels: the library can't be loaded, or no threads be started.
    """

    def __init__(self, library: Path, threads: int, *, cores: Sequence[int] = (), spin_s: float = SPIN_S) -> None:
        self._library = abi.load(library)
        self.level = abi.level_of(self._library)
        self.threads = threads
        self._team = self._library.phloem_team_new(
            threads, round(spin_s * 1e9), (ctypes.c_int32 * len(cores))(*cores), len(cores)
        )
        if self._team is None:
            raise NoKernels(f"{threads} threads for the kernels can't be started")
        self._end = weakref.finalize(self, self._library.phloem_team_free, self._team)
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self._buffers = Buffers()

    def close(self) -> None:
        """End the threads. The kernels can't be called any more."""
        self._end()

    def forward(self, model: abi.ModelStruct, batch: BatchView, hidden: Tensor) -> None:
        """The stack: K and V into the pool, last hidden states into ``hidden`` [T, hidden_size]."""
        size = self._library.phloem_workspace(model, self._team, batch.struct)
        self._library.phloem_forward(model, self._team, batch.struct, hidden.data_ptr(), self._room(size))

    def multiply(self, weight: Packed, x: Tensor) -> Tensor:
        """float32 [n, outputs] of ``x`` [n, inputs], bf16 or (for a float32 weight) float32."""
        x = x.contiguous()
        out = self._buffers.take((x.shape[0], weight.outputs), torch.float32)
        struct = weight.struct()
        size = self._library.phloem_multiply_workspace(struct, self._team, x.shape[0])
        self._library.phloem_multiply(struct, self._team, x.data_ptr(), x.shape[0], out.data_ptr(), self._room(size))
        return out

    def attend(self, model: abi.ModelStruct, layer: abi.LayerStruct, batch: BatchView, q: Tensor) -> Tensor:
        """Attention of one layer over its pool: ``q`` [T, heads, head_dim] to [T, heads * head_dim]."""
        q = q.contiguous()
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype)
        size = self._library.phloem_attend_workspace(model, batch.struct)
        self._library.phloem_attend(
            model, layer, self._team, batch.struct, q.data_ptr(), out.data_ptr(), self._room(size)
        )
        return out

    def store(self, model: abi.ModelStruct, layer: abi.LayerStruct, batch: BatchView, k: Tensor, v: Tensor) -> None:
        """Write float32 ``k`` and ``v`` [T, kv_heads, head_dim] at the batch's positions."""
        k, v = k.contiguous(), v.contiguous()
        self._library.phloem_store(model, layer, batch.struct, k.data_ptr(), v.data_ptr())

    def draw(self, draws: abi.DrawsStruct) -> None:
        """A token per row, where ``draws`` says."""
        size = self._library.phloem_draw_workspace(draws, self._team)
        self._library.phloem_draw(draws, self._team, self._room(size))

    def score(self, scores: abi.ScoresStruct) -> None:
        """Log-probabilities, where ``scores`` says."""
        size = self._library.phloem_score_workspace(scores, self._team)
        self._library.phloem_score(scores, self._team, self._room(size))

    def _room(self, size: int) -> int:
        """Address of at least ``size`` bytes, kept from call to call."""
        if self._workspace.numel() < size:
            self._workspace = torch.empty(size, dtype=torch.uint8)
        return self._workspace.data_ptr()


class BatchView:
    """A batch as the kernels read it. Keeps its arrays alive."""

    def __init__(self, batch: Batch, tokens: Tensor) -> None:
        self._tokens = tokens.contiguous()
        arrays = batch.positions, batch.starts, batch.counts, batch.tables
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        self.struct = abi.BatchStruct(
            self._tokens.data_ptr(),
            *(array.ctypes.data for array in self._arrays),
            len(tokens),
            len(batch.counts),
            batch.tables.shape[1],
        )
