"""Weights in the layouts that ``matmul.h`` reads: blocks of 32 outputs, so that one load serves sixteen of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..grouped import GROUP, Grouped
from . import abi
from .memory import aligned

BLOCK = 32
"""Outputs per block."""
_KINDS = {torch.bfloat16: abi.BF16, torch.float32: abi.F32}

Matrix = Tensor | Grouped
"""A weight [outputs, inputs], as it is or in groups."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed weight and what belongs to it. ``outputs`` are those of the weight; ``blocks`` times 32 are computed."""

    weights: Tensor
    scales: Tensor | None
    offsets: Tensor | None
    bias: Tensor | None
    kind: int
    outputs: int
    inputs: int

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        parts = (self.weights, self.scales, self.offsets, self.bias)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def struct(self) -> abi.LinearStruct:
        """For a call. Valid as long as this object lives."""
        return abi.LinearStruct(
            self.weights.data_ptr(),
            _address(self.scales),
            _address(self.offsets),
            _address(self.bias),
            self.kind,
            -(-self.outputs // BLOCK),
            self.outputs,
            self.inputs,
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def pack(weight: Matrix, bias: Tensor | None = None) -> Packed:
    """Pack ``weight`` [outputs, inputs]; inputs even, or of whole groups. ``bias`` [outputs]."""
    padded_bias = None if bias is None else _fill(_padded(bias.float()))
    if isinstance(weight, Grouped):
        return _pack_grouped(weight, padded_bias)
    outputs, inputs = weight.shape
    blocks = _padded(weight).view(-1, BLOCK, inputs)
    if weight.dtype == torch.float32:
        packed = _fill(blocks.permute(0, 2, 1))
    else:
        packed = _fill(blocks.view(-1, BLOCK, inputs // 2, 2).permute(0, 2, 1, 3))
    return Packed(packed, None, None, padded_bias, _KINDS[weight.dtype], outputs, inputs)


def _pack_grouped(weight: Grouped, bias: Tensor | None) -> Packed:
    outputs, inputs = weight.values.shape
    values = _padded(weight.values)
    scales = _fill(_by_group(weight.scales))
    if weight.offsets is None:
        packed = _fill(values.view(-1, BLOCK, inputs // 2, 2).permute(0, 2, 1, 3))
        return Packed(packed, scales, None, bias, abi.INT8, outputs, inputs)
    # [block, half, column, group, quarter, step, parity]: the four steps of a word become its four values.
    split = values.view(-1, 2, BLOCK // 2, inputs // GROUP, 4, 4, 2).permute(5, 0, 3, 4, 1, 2, 6)
    words = aligned(tuple(split.shape[1:]), torch.int16)
    for step in range(4):
        words |= split[step].to(torch.int16) << (4 * step)
    return Packed(words, scales, _fill(_by_group(weight.offsets)), bias, abi.INT4, outputs, inputs)


def _by_group(values: Tensor) -> Tensor:
    """[outputs, groups] to [blocks, groups, 32]."""
    return _padded(values).view(-1, BLOCK, values.shape[1]).permute(0, 2, 1)


def _padded(tensor: Tensor) -> Tensor:
    """With zeros after the last output, up to a whole block."""
    missing = -tensor.shape[0] % BLOCK
    if not missing:
        return tensor.contiguous()
    return torch.cat((tensor, tensor.new_zeros((missing, *tensor.shape[1:]))))


def _fill(tensor: Tensor) -> Tensor:
    """A contiguous copy in aligned memory."""
    return aligned(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def alternate(first: Matrix, second: Matrix) -> Matrix:
    """Two weights of equal shape as one whose blocks come from them in turn, each padded to whole blocks."""
    if isinstance(first, Grouped) and isinstance(second, Grouped):
        offsets = None
        if first.offsets is not None and second.offsets is not None:
            offsets = _alternate(first.offsets, second.offsets)
        return Grouped(_alternate(first.values, second.values), _alternate(first.scales, second.scales), offsets)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return _alternate(first, second)


def _alternate(first: Tensor, second: Tensor) -> Tensor:
    blocks = [_padded(part).view(-1, 1, BLOCK, *part.shape[1:]) for part in (first, second)]
    return torch.cat(blocks, dim=1).flatten(0, 2)


def alternate_bias(first: Tensor, second: Tensor) -> Tensor:
    """Biases of `alternate`."""
    return _alternate(first, second)
