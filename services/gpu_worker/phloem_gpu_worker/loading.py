"""Fetch a model's weights one by one: shapes checked, converted or quantised, the original dropped at once."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from .errors import BadWeights
from .grouped import GROUP, Grouped, joined, quantise
from .weights import WeightSource

QUANTISATIONS = ("none", "int8", "int4", "stored")
"""How matrices are held: in the model's dtype, rounded to 8 or 4 bits, or as the file has them."""
Matrix = Tensor | Grouped
T = TypeVar("T", Tensor, Grouped)


class Loader:
    """Fetches weights by canonical name.

    Args:
        dtype, device: what dense weights are converted to.
        quantisation: one of `QUANTISATIONS`.

    Raises (its methods):
        BadWeights: a weight is missing, has another shape than is asked for, or can't be quantised.
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
        if shape[1] % GROUP:
            raise BadWeights(f"weight {name} can't be quantised: its rows of {shape[1]} are no multiple of {GROUP}")
        if self._quantisation == "stored":
            stored = self._source.grouped(name)
            if stored is None and not self._source.quantised(name):
                return self.dense(name, shape)
            if stored is not None:
                return _of_shape(name, stored, shape)
            bits = 8  # a type we have no kernel for: eight bits lose next to nothing of it
        return quantise(self._checked(name, shape), bits or {"int8": 8, "int4": 4}[self._quantisation])

    def stacked(self, names: tuple[str, ...], outputs: tuple[int, ...], inputs: int) -> Matrix:
        """Several matrices that read the same input, one above the other."""
        return stack([self.matrix(name, (rows, inputs)) for name, rows in zip(names, outputs, strict=True)])

    def bias(self, names: tuple[str, ...], outputs: tuple[int, ...]) -> Tensor | None:
        """The biases of stacked matrices, given their weights' names; None if the model has none."""
        wanted = [name.removesuffix("weight") + "bias" for name in names]
        if not self.has(wanted[0]):
            return None
        return torch.cat([self.dense(name, (rows,)) for name, rows in zip(wanted, outputs, strict=True)])

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return _of_shape(name, self._source.get(name), shape)


def _of_shape(name: str, weight: T, shape: tuple[int, ...]) -> T:
    if tuple(weight.shape) != shape:
        raise BadWeights(f"weight {name} has shape {tuple(weight.shape)}, not {shape}")
    return weight


def stack(parts: list[Matrix]) -> Matrix:
    """Matrices of equal inputs as one. Those of different kinds become eight bits."""
    dense = [part for part in parts if isinstance(part, Tensor)]
    if len(dense) == len(parts):
        return torch.cat(dense)
    grouped = [part if isinstance(part, Grouped) else quantise(part, 8) for part in parts]
    if len({part.offsets is None for part in grouped}) > 1:
        grouped = [part if part.offsets is None else quantise(part.dense(), 8) for part in grouped]
    return joined(grouped)
