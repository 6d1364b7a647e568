"""Compiled kernels for tests, and what is needed to call them without a model."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from phloem_gpu_worker.batch import Batch
from phloem_gpu_worker.kernels import abi
from phloem_gpu_worker.kernels.build import LEVELS, NoKernels, library, pick_level
from phloem_gpu_worker.kernels.memory import aligned
from phloem_gpu_worker.kernels.team import BatchView, Kernels
from phloem_model.cache import cache_root

LEVEL_NAMES = [level.name for level in LEVELS]
EACH_LEVEL = [
    pytest.param(name, marks=() if name in (LEVEL_NAMES[0], LEVEL_NAMES[-1]) else pytest.mark.long)
    for name in LEVEL_NAMES
]
"""Parameters: the first and the last always, those between in long runs, since each has to be compiled."""
EXTRA_FLAGS = tuple(os.environ.get("PHLOEM_TEST_KERNEL_FLAGS", "").split())
"""For the compiler: the sanitizers' in their own run."""


@functools.cache
def kernels(level: str = "auto", threads: int = 2) -> Kernels:
    """Kernels of one level, made once; skips where this machine can't have them."""
    try:
        return Kernels(library(pick_level(level), cache_root() / "kernels", EXTRA_FLAGS), threads)
    except NoKernels as error:
        pytest.skip(str(error))


class Heads:
    """The attention of one layer: a pool of random keys and values for rows of a batch."""

    def __init__(
        self, made: Kernels, *, heads: int, kv_heads: int, head_dim: int, page_size: int, pages: int, dtype: torch.dtype
    ) -> None:
        self._kernels = made
        self.dtype = dtype
        shape = (kv_heads, pages, head_dim * page_size)
        self.keys, self.values = (aligned(shape, dtype) for _ in range(2))
        self._layer = abi.LayerStruct()
        self._layer.keys, self._layer.values = self.keys.data_ptr(), self.values.data_ptr()
        self._layers = (abi.LayerStruct * 1)(self._layer)
        self._model = abi.ModelStruct()
        self._model.layers = ctypes.cast(self._layers, ctypes.POINTER(abi.LayerStruct))
        self._model.layer_count = 1
        self._model.dtype = abi.BF16 if dtype == torch.bfloat16 else abi.F32
        self._model.heads, self._model.kv_heads, self._model.head_dim = heads, kv_heads, head_dim
        self._model.page_size, self._model.pages = page_size, pages

    def store(self, batch: Batch, k: Tensor, v: Tensor) -> None:
        """Float32 ``k`` and ``v`` [T, kv_heads, head_dim] at the batch's positions."""
        self._kernels.store(self._model, self._layer, _view(batch), k, v)

    def attend(self, batch: Batch, q: Tensor) -> Tensor:
        """``q`` [T, heads, head_dim] to [T, heads * head_dim]"""
        return self._kernels.attend(self._model, self._layer, _view(batch), q.to(self.dtype))


def _view(batch: Batch) -> BatchView:
    return BatchView(batch, torch.from_numpy(batch.tokens))


@contextmanager
def team_of(threads: int) -> Iterator[Kernels]:
    """Kernels of the best level with threads of their own, ended afterwards."""
    made = Kernels(library(pick_level(), cache_root() / "kernels", EXTRA_FLAGS), threads)
    try:
        yield made
    finally:
        made.close()


def seeded(seed: int) -> tuple[np.random.Generator, torch.Generator]:
    """Generators of numpy and torch."""
    return np.random.default_rng(seed), torch.Generator().manual_seed(seed)
