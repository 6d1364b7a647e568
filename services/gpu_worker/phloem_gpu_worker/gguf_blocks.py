"""GGUF's blocks of 32 numbers as groups, bit for bit (ggml's ``block_q4_0``, ``block_q4_1`` and ``block_q8_0``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from .grouped import Grouped

_Q4_0_ZERO = 8
"""What stands for zero in Q4_0."""


def _q8_0(blocks: NDArray[np.uint8]) -> Grouped:
    """A scale, 32 signed bytes: [outputs, groups, 34]."""
    values = blocks[..., 2:].copy().view(np.int8)
    return Grouped(_flat(values), _halves(blocks, 0))


def _q4_0(blocks: NDArray[np.uint8]) -> Grouped:
    """A scale, 16 bytes of two values each: [outputs, groups, 18]."""
    scales = _halves(blocks, 0)
    # -8 times a half is one, unless it is too large for it: then it is infinite, and whoever loads the weight refuses it.
    return Grouped(_nibbles(blocks[..., 2:]), scales, (scales.float() * -_Q4_0_ZERO).half())


def _q4_1(blocks: NDArray[np.uint8]) -> Grouped:
    """A scale, the least value, 16 bytes of two values each: [outputs, groups, 20]."""
    return Grouped(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _nibbles(packed: NDArray[np.uint8]) -> Tensor:
    """Lower halves of 16 bytes are the first 16 values, upper halves the others."""
    return _flat(np.concatenate((packed & 15, packed >> 4), axis=-1))


def _halves(blocks: NDArray[np.uint8], at: int) -> Tensor:
    return torch.from_numpy(blocks[..., at : at + 2].copy().view(np.float16)[..., 0])


def _flat(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values.reshape(values.shape[0], -1))


GROUPED: dict[GGMLQuantizationType, Callable[[NDArray[np.uint8]], Grouped]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}
"""From blocks uint8 [outputs, groups, bytes of a block]."""
