"""Rotary position embedding: frequencies, and their application to queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .architecture import Architecture, RopeScaling


def frequencies(arch: Architecture, factors: Tensor | None = None) -> Tensor:
    """Angle per position of each pair of dimensions: float32 [head_dim / 2].

    Args:
        factors: float32 [head_dim / 2] divisors that a GGUF stores ready-made (``rope_freqs``); they replace the scaling.
    """
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.int64).float() / arch.head_dim
    plain = 1.0 / (arch.rope_theta**exponents)
    if factors is not None:
        return plain / factors
    if arch.rope_scaling is None:
        return plain
    if arch.rope_scaling.kind == "linear":
        return plain / arch.rope_scaling.factor
    return _llama3(plain, arch.rope_scaling)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths are divided by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / plain
    longest_kept = scaling.original_context / scaling.high_freq_factor
    shortest_divided = scaling.original_context / scaling.low_freq_factor
    share = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - share) * plain / scaling.factor + share * plain
    divided = torch.where(wavelengths > shortest_divided, plain / scaling.factor, blended)
    return torch.where(wavelengths < longest_kept, plain, divided)


def angles(inverse: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine for each position: two ``dtype`` [T, 1, head_dim / 2], computed in float32."""
    phase = positions.float()[:, None] * inverse
    return phase.cos().to(dtype)[:, None], phase.sin().to(dtype)[:, None]


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [T, heads, head_dim]: the pair of dimension i is i + head_dim / 2."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
