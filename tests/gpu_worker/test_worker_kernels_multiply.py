"""Products with packed weights: right against torch in float64, and a row's bits its own whatever is computed beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phloem_gpu_worker.grouped import Grouped, quantise
from phloem_gpu_worker.kernels.packing import Matrix, alternate, pack

from .compiled import EACH_LEVEL, kernels, seeded, team_of

KINDS = ("bfloat16", "float32", "int8", "int4")
SHAPES = [(32, 32), (96, 64), (100, 96), (1, 32), (300, 160), (704, 288)]
"""Outputs, inputs: whole blocks and not, more outputs than a thread's share."""
ROWS = (1, 2, 3, 4, 6, 7, 12, 13, 25, 241, 400)


def weight_of(kind: str, outputs: int, inputs: int, generator: torch.Generator) -> Matrix:
    dense = torch.randn(outputs, inputs, generator=generator)
    if kind == "bfloat16":
        return dense.bfloat16()
    return dense if kind == "float32" else quantise(dense, {"int8": 8, "int4": 4}[kind])


def inputs_of(kind: str, rows: int, inputs: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(rows, inputs, generator=generator)
    return x if kind == "float32" else x.bfloat16()


def exact(weight: Matrix, x: Tensor) -> Tensor:
    dense = weight.dense() if isinstance(weight, Grouped) else weight
    return x.double() @ dense.double().T


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_right(level: str, kind: str) -> None:
    _, generator = seeded(1)
    for outputs, inputs in SHAPES:
        weight = weight_of(kind, outputs, inputs, generator)
        packed = pack(weight)
        for rows in ROWS:
            x = inputs_of(kind, rows, inputs, generator)
            got = kernels(level).multiply(packed, x)
            assert got.shape == (rows, outputs)
            torch.testing.assert_close(got.double(), exact(weight, x), atol=2e-4 * inputs**0.5, rtol=1e-4)


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_product_is_the_same_alone_and_beside_any_others(level: str, kind: str) -> None:
    draw, generator = seeded(2)
    packed = pack(weight_of(kind, 300, 160, generator))
    x = inputs_of(kind, 260, 160, generator)
    alone = torch.cat([kernels(level).multiply(packed, x[i : i + 1]) for i in range(len(x))])
    for count in (2, 3, 5, 11, 12, 13, 14, 24, 64, 240, 260):
        chosen = torch.from_numpy(draw.permutation(len(x))[:count].copy())
        assert torch.equal(kernels(level).multiply(packed, x[chosen]), alone[chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_no_bit(kind: str) -> None:
    _, generator = seeded(3)
    packed = pack(weight_of(kind, 704, 160, generator))
    x = inputs_of(kind, 30, 160, generator)
    expected = kernels().multiply(packed, x)
    for threads in (1, 3, 8):
        with team_of(threads) as team:
            assert torch.equal(team.multiply(packed, x), expected)


def test_helpers_that_come_late_or_not_at_all_change_no_bit() -> None:
    _, generator = seeded(7)
    packed = pack(weight_of("bfloat16", 300, 160, generator))
    x = inputs_of("bfloat16", 5, 160, generator)
    expected = kernels().multiply(packed, x)
    with team_of(7) as made:  # more than there are cores
        for _ in range(1000):
            assert torch.equal(made.multiply(packed, x), expected)


def test_a_bias_is_added() -> None:
    _, generator = seeded(4)
    weight, bias = torch.randn(70, 64, generator=generator), torch.randn(70, generator=generator)
    x = torch.randn(5, 64, generator=generator)
    got = kernels().multiply(pack(weight, bias), x)
    torch.testing.assert_close(got, x @ weight.T + bias, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_alternating_blocks_are_both_weights(kind: str) -> None:
    _, generator = seeded(5)
    first, second = (weight_of(kind, 80, 64, generator) for _ in range(2))
    x = inputs_of(kind, 3, 64, generator)
    both = kernels().multiply(pack(alternate(first, second)), x).view(3, 3, 2, 32)
    for which, weight in enumerate((first, second)):
        got = both[:, :, which].flatten(1)[:, :80]
        torch.testing.assert_close(got.double(), exact(weight, x), atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_within_half_a_unit(bits: int) -> None:
    _, generator = seeded(6)
    weight = torch.randn(40, 96, generator=generator)
    weight[3, :32] = 0.0
    weight[4, :32] = 1.5
    rounded = quantise(weight, bits)
    unit = rounded.scales.float().repeat_interleave(32, dim=1)
    assert ((rounded.dense() - weight).abs() <= 0.51 * unit + 2e-3).all()
    assert (rounded.dense()[3, :32] == 0).all()
    torch.testing.assert_close(rounded.dense()[4, :32], torch.full((32,), 1.5), atol=0.01, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays_in_its_row(kind: str) -> None:
    _, generator = seeded(7)
    packed = pack(weight_of(kind, 64, 64, generator))
    x = inputs_of(kind, 5, 64, generator)
    expected = kernels().multiply(packed, x)
    x[2, 7] = float("nan")
    got = kernels().multiply(packed, x)
    assert got[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(got[others], expected[others])
