"""Memory as the kernels like it: on the bounds of cache lines, in large pages where the system has them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line."""


def aligned(shape: tuple[int, ...], dtype: torch.dtype, *, zero: bool = False) -> Tensor:
    """An uninitialised tensor that begins on a cache line; with ``zero`` one of zeros, which takes real memory only as far as it is written."""
    size = math.prod(shape) * dtype.itemsize
    raw = (np.zeros if zero else np.empty)(size + LINE, dtype=np.uint8)
    begin = -raw.ctypes.data % LINE
    return torch.from_numpy(raw[begin : begin + size]).view(dtype).view(shape)
