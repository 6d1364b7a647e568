"""What was measured, and what it says beside the machine's limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .limits import GIGA, TORCH

DECODE, PREFILL = "decode", "prefill"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine did in one round: GB/s by way, GFLOP/s of the square product by who computes, and of torch in the model's shapes."""

    reads: dict[str, float]
    products: dict[str, float]
    own_shapes: float

    @property
    def bandwidth(self) -> float:
        """GB/s of the best way."""
        return max(self.reads.values())

    @property
    def rate(self) -> float:
        """GFLOP/s of torch."""
        return self.products[TORCH]


@dataclass(frozen=True, slots=True)
class Sample:
    """One step in one round, by the kernels and by torch.

    ``work``: bytes of weights that a decode step reads, or floating-point operations of a prompt.
    """

    quantize: str
    kind: str
    size: int
    """Rows that decode, or tokens of the prompt."""
    work: int
    ours_s: float
    torch_s: float
    limits: Limits

    @property
    def of_limit(self) -> float:
        """Decode: the step's time over that of reading the weights. Prefill: the step's share of the matrix rate."""
        if self.kind == DECODE:
            return self.ours_s / (self.work / (self.limits.bandwidth * GIGA))
        return self.work / self.ours_s / (self.limits.rate * GIGA)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over rounds of what was measured of one step. ``of_torch``: the kernels' time over torch's with unquantised weights."""

    quantize: str
    kind: str
    size: int
    ours_ms: float
    torch_ms: float
    of_torch: float
    of_limit: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the kernels compute per second."""
        return self.size / self.ours_ms * 1e3


def rows_of(samples: Iterable[Sample]) -> list[Row]:
    """One row per step, in the order of their first samples; ratios are paired within rounds."""
    groups: dict[tuple[str, str, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.quantize, sample.kind, sample.size), []).append(sample)
    return [
        Row(
            *key,
            ours_ms=median(one.ours_s for one in group) * 1e3,
            torch_ms=median(one.torch_s for one in group) * 1e3,
            of_torch=median(one.ours_s / one.torch_s for one in group),
            of_limit=median(one.of_limit for one in group),
        )
        for key, group in groups.items()
    ]


def middle(limits: list[Limits]) -> Limits:
    """Medians over rounds."""
    first = limits[0]
    return Limits(
        {name: median(one.reads[name] for one in limits) for name in first.reads},
        {name: median(one.products[name] for one in limits) for name in first.products},
        median(one.own_shapes for one in limits),
    )
