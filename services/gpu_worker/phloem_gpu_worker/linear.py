"""Linear layers, packed for the CPU's matrix kernels where they exist."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """``x [T, in] -> [T, out]`` in the dtype of the weights."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """A weight ``[out, in]`` as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear:
    """A bf16 weight in oneDNN's blocked layout: 1.3-3.4 times as fast as the plain one for up to 64 rows.

    The packed copy is all that is kept; the caller should drop the original, which would double the memory.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return packed


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `PackedLinear` works here. float32 stays plain: packing gains nothing and would change rounding."""
    if dtype != torch.bfloat16 or device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest layer for ``weight [out, in]`` on its device; ``bias [out]`` or None."""
    if can_pack(weight.dtype, weight.device):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
