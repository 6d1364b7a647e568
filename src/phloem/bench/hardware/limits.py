"""What the machine can do: bytes read and numbers multiplied per second, each in the best of several ways."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from phloem_gpu_worker.architecture import Architecture
from phloem_gpu_worker.kernels.memory import aligned
from phloem_gpu_worker.kernels.packing import pack
from phloem_gpu_worker.kernels.team import Kernels
from phloem_gpu_worker.linear import linear

GIGA = 1e9
TORCH, KERNELS = "torch", "kernels"


def fastest(call: Callable[[], object], tries: int) -> float:
    """Seconds of the shortest of ``tries`` calls."""
    return min(timed(call) for _ in range(tries))


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Memory:
    """A buffer to be read by all threads of torch.

    Args:
        size: bytes, a multiple of 16: far more than caches hold.
    """

    def __init__(self, size: int) -> None:
        words = aligned((size // 8,), torch.int64)
        words.fill_(1)  # memory that was never written is one page of zeros, which caches hold
        floats = words.view(torch.float32)
        here, there = floats.chunk(2)
        self._size = size
        self._ways: dict[str, Callable[[], object]] = {
            "sum of int64": words.sum,
            "sum of float32": floats.sum,
            "dot product": lambda: torch.dot(here, there),
            "copy (read and written)": lambda: there.copy_(here),
        }

    def rates(self, tries: int) -> dict[str, float]:
        """GB/s by way of reading."""
        return {name: self._size / fastest(way, tries) / GIGA for name, way in self._ways.items()}


class Products:
    """Matrix products of a square and of the model's own shapes, in the model's dtype: by torch's packed layers and by our kernels.

    Args:
        square: rows, inputs and outputs of the product that says the rate.
        rows: of the products in the model's shapes.
    """

    def __init__(self, arch: Architecture, dtype: torch.dtype, kernels: Kernels, square: int, rows: int) -> None:
        self._dtype = dtype
        self._rows = rows
        self._shapes = [(sum(one.outputs), one.inputs) for one in arch.projections.values()]
        self._products = [self._product(outputs, inputs) for outputs, inputs in self._shapes]
        weight, self._x = self._random(square, square), self._random(square, square)
        self._layer = linear(weight)
        packed = pack(weight)
        self._square: dict[str, Callable[[], object]] = {
            TORCH: lambda: self._layer(self._x),
            KERNELS: lambda: kernels.multiply(packed, self._x),
        }
        self._square_flops = 2 * square**3

    def rates(self, tries: int) -> dict[str, float]:
        """GFLOP/s of the square product, by who computes it."""
        with torch.inference_mode():
            return {who: self._square_flops / fastest(call, tries) / GIGA for who, call in self._square.items()}

    def own_rate(self, tries: int) -> float:
        """GFLOP/s of torch in the products of a block of the model."""
        flops = sum(2 * self._rows * outputs * inputs for outputs, inputs in self._shapes)
        with torch.inference_mode():
            return flops / sum(fastest(product, tries) for product in self._products) / GIGA

    def _product(self, outputs: int, inputs: int) -> Callable[[], object]:
        layer, x = linear(self._random(outputs, inputs)), self._random(self._rows, inputs)
        return lambda: layer(x)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self._dtype)
