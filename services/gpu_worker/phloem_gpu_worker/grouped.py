"""Quantised weights: whole numbers of a few bits, with one scale per group of 32 inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
"""Inputs per group: the size that GGUF's Q4_0, Q4_1 and Q8_0 have."""
_AT_ONCE = 1 << 22
"""Numbers that are rounded together: what is needed meanwhile is a few times their float32."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A weight [outputs, inputs]: ``values * scales``, plus ``offsets`` where there are any (4 bits only)."""

    values: Tensor
    """[outputs, inputs]: int8 from -127 to 127, or with offsets uint8 from 0 to 15"""
    scales: Tensor
    """float16 [outputs, inputs / 32]"""
    offsets: Tensor | None = None
    """float16 [outputs, inputs / 32]"""

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.values.shape
        return outputs, inputs

    def dense(self) -> Tensor:
        """float32 [outputs, inputs]"""
        grouped = self.values.float().view(self.shape[0], -1, GROUP) * self.scales.float()[:, :, None]
        if self.offsets is not None:
            grouped = grouped + self.offsets.float()[:, :, None]
        return grouped.view(self.shape)

    def rows(self, order: Tensor) -> Grouped:
        """The outputs that ``order`` int64 [n] names."""
        return Grouped(self.values[order], self.scales[order], None if self.offsets is None else self.offsets[order])


def joined(parts: list[Grouped]) -> Grouped:
    """Weights of equal inputs and kind, one above the other."""
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return Grouped(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(offsets) if offsets else None,
    )


def quantise(weight: Tensor, bits: int) -> Grouped:
    """Round ``weight`` [outputs, inputs] to 8 bits (symmetric) or 4 (between each group's least and largest).

    Scales and offsets are not finite where the group's numbers are not, or are too large for them.
    """
    rows = max(1, _AT_ONCE // weight.shape[1])
    return joined([_rounded(part, bits) for part in torch.split(weight, rows)])


def _rounded(weight: Tensor, bits: int) -> Grouped:
    outputs, inputs = weight.shape
    groups = weight.float().reshape(outputs, inputs // GROUP, GROUP)
    if bits == 8:
        scales = _scales(groups.abs().amax(dim=2), 127)
        values = _divided(groups, scales).clamp(-127, 127).to(torch.int8)
        return Grouped(values.view(outputs, inputs), scales)
    offsets = groups.amin(dim=2).half()
    above = groups - offsets.float()[:, :, None]
    scales = _scales(above.amax(dim=2).clamp(min=0), 15)
    values = _divided(above, scales).clamp(0, 15).to(torch.uint8)
    return Grouped(values.view(outputs, inputs), scales, offsets)


def _scales(most: Tensor, units: int) -> Tensor:
    """What a unit is if ``units`` of them make ``most``, as halves. Small ones are far apart: the next larger where values would be cut."""
    scales = (most / units).half()
    cut = scales.float() * (units + 0.5) < most
    return torch.where(cut, (scales.view(torch.int16) + 1).view(torch.half), scales)


def _divided(groups: Tensor, scales: Tensor) -> Tensor:
    """``groups`` in units of their scales, rounded; 0 where the scale is."""
    units = scales.float()[:, :, None]
    return torch.where(units > 0, groups / units, 0.0).round()
