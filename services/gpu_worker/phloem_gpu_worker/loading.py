"""Fetch a model's weights one by one: shapes checked, converted or quantised, the original dropped at once."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from .errors import BadWeights
from .grouped import GROUP, Grouped, joined, quantise
from .weights import WeightSource

_BITS = {"int8": 8, "int4": 4}
Matrix = Tensor | Grouped
T = TypeVar("T", Tensor, Grouped)


class Loader:
    """Fetches weights by canonical name.

    Args:
        dtype, device: what dense weights are converted to.
        quantisation: one of `config.QUANTISATIONS`.

    Raises (its methods):
        BadWeights: a weight is missing, has another shape than is asked for, holds what is not a number, or can't be quantised.
    """

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: torch.device, quantisation: str = "none"
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device
        self._quantisation = quantisation

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The weight in the model's dtype."""
        return self._checked(name, shape).to(device=self._device, dtype=self._dtype)

    def matrix(self, name: str, shape: tuple[int, int], bits: int | None = None) -> Matrix:
        """The weight [outputs, inputs] as it is to be held; ``bits`` overrides how many."""
        if self._quantisation == "none":
            return self.dense(name, shape)
        if self._quantisation == "stored":
            stored = self._source.grouped(name)
            if stored is not None:
                return _finite(name, _of_shape(name, stored, shape))
            if not self._source.quantised(name):
                return self.dense(name, shape)
            bits = 8  # a type we have no kernel for: eight bits lose next to nothing of it
        return _rounded(name, self._checked(name, shape), bits or _BITS[self._quantisation])

    def stacked(self, names: tuple[str, ...], outputs: tuple[int, ...], inputs: int) -> Matrix:
        """Several matrices that read the same input, one above the other. Those of different kinds become eight bits."""
        parts = [self.matrix(name, (rows, inputs)) for name, rows in zip(names, outputs, strict=True)]
        if len({_kind(part) for part in parts}) > 1:
            parts = [_in_eight_bits(name, part) for name, part in zip(names, parts, strict=True)]
        grouped = [part for part in parts if isinstance(part, Grouped)]
        return joined(grouped) if grouped else torch.cat([part for part in parts if isinstance(part, Tensor)])

    def bias(self, names: tuple[str, ...], outputs: tuple[int, ...], *, wanted: bool = False) -> Tensor | None:
        """The biases of stacked matrices, given their weights' names; None if there are none and none are ``wanted``."""
        biases = [name.removesuffix("weight") + "bias" for name in names]
        if not wanted and not any(map(self.has, biases)):
            return None
        return torch.cat([self.dense(name, (rows,)) for name, rows in zip(biases, outputs, strict=True)])

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return _finite(name, _of_shape(name, self._source.get(name), shape))


def _of_shape(name: str, weight: T, shape: tuple[int, ...]) -> T:
    if tuple(weight.shape) != shape:
        raise BadWeights(f"weight {name} has shape {tuple(weight.shape)}, not {shape}")
    return weight


def _finite(name: str, weight: T) -> T:
    """``weight``, if all of its numbers are numbers: one that is not would be in every answer."""
    parts = (weight,) if isinstance(weight, Tensor) else (weight.scales, weight.offsets)
    for part in parts:
        if part is not None and not torch.stack(part.aminmax()).isfinite().all():
            raise BadWeights(f"weight {name} holds what is not a number, or too large a one")
    return weight


def _rounded(name: str, weight: Tensor, bits: int) -> Grouped:
    if weight.shape[1] % GROUP:
        raise BadWeights(f"weight {name} can't be quantised: its rows of {weight.shape[1]} are no multiple of {GROUP}")
    return _finite(name, quantise(weight, bits))


def _kind(part: Matrix) -> int:
    """Bits per number of a quantised matrix, 16 for others."""
    if isinstance(part, Tensor):
        return 16
    return 8 if part.offsets is None else 4


def _in_eight_bits(name: str, part: Matrix) -> Grouped:
    if isinstance(part, Grouped) and part.offsets is None:
        return part
    return _rounded(name, part if isinstance(part, Tensor) else part.dense(), 8)
