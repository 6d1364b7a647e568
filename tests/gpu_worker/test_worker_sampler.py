"""Sampling by either sampler: distributions, filters, penalties, masks, keys, faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from phloem_gpu_worker.draws import FINE, NOT_A_NUMBER, NOTHING_LEGAL, Biases, Drawn, Draws, Masks, Penalties
from phloem_gpu_worker.keys import waits
from phloem_gpu_worker.sampler import Sampler

N = 4000


def draws_of(rows: int, **changes: Any) -> Draws:
    """Greedy draws with consecutive seeds, changed as given (a scalar counts for every row)."""
    kinds: dict[str, Any] = {
        "temperature": np.float32, "top_p": np.float32, "top_k": np.int64, "min_p": np.float32,
        "seeds": np.uint64, "children": np.int64, "positions": np.int64, "logprobs": np.int64,
    }  # fmt: skip
    defaults: dict[str, Any] = {
        "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
        "seeds": np.arange(rows), "children": 0, "positions": 0, "logprobs": -1,
    }  # fmt: skip
    fields: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(changes.pop(name, defaults[name]), dtype=kind), (rows,)).copy()
        for name, kind in kinds.items()
    }
    return Draws(**fields, **changes)


def draw(sampler: Sampler, logits: torch.Tensor, draws: Draws) -> Drawn:
    return sampler.draw(logits, draws).read()


def drawn_from(sampler: Sampler, row: list[float], rows: int = N, **changes: Any) -> Drawn:
    return draw(sampler, torch.tensor([row]).repeat(rows, 1), draws_of(rows, **changes))


def shares(drawn: Drawn, vocab: int) -> np.ndarray[Any, Any]:
    return np.bincount(drawn.ids, minlength=vocab) / len(drawn.ids)


def test_greedy_takes_the_largest(sampler: Sampler) -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1))
    assert draw(sampler, logits.clone(), draws_of(5)).ids.tolist() == logits.argmax(-1).tolist()
    almost_zero = draw(sampler, logits.clone(), draws_of(5, temperature=[0.0, 1e-6, 0.0, 0.0, 0.0]))
    assert almost_zero.ids.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_follow_softmax(sampler: Sampler, temperature: float) -> None:
    row = [2.0, 1.0, 0.0, -1.0, 1.5, *[-30.0] * 700, 0.5]
    expected = (torch.tensor(row) / temperature).softmax(-1).numpy()
    assert np.abs(shares(drawn_from(sampler, row, temperature=temperature), len(row)) - expected).max() < 0.03


def test_a_flat_distribution_is_drawn_evenly_across_blocks(sampler: Sampler) -> None:
    """Pearson's statistic over 700 tokens in three blocks, the last of them short; its mean is 699, its deviation 37."""
    counts, rows = np.zeros(700), 7000
    for part in range(10):
        drawn = drawn_from(sampler, [0.0] * 700, rows=rows, temperature=1.0, seeds=np.arange(rows) + part * rows)
        counts += np.bincount(drawn.ids, minlength=700)
    assert 550 < ((counts - 100) ** 2 / 100).sum() < 850


def test_rounding_hardly_ever_changes_a_draw(sampler: Sampler) -> None:
    """Logits of the same row in another batch differ in their last bits; equal seeds must draw equal tokens all the same."""
    generator = torch.Generator().manual_seed(5)
    changed, rows = 0, 100
    for part in range(20):
        logits = torch.randn(rows, 8000, generator=generator) * 3
        near = logits + torch.randn(rows, 8000, generator=generator) * 5e-5
        draws = draws_of(rows, temperature=0.9, top_p=1.0 if part % 4 else 0.95, seeds=np.arange(rows) + part * rows)
        changed += int((draw(sampler, logits, draws).ids != draw(sampler, near, draws).ids).sum())
    assert changed <= 1, "of 2,000"


def test_top_k_keeps_k_and_renormalises(sampler: Sampler) -> None:
    got = shares(drawn_from(sampler, [3.0, 2.0, 1.0, 0.0], temperature=1.0, top_k=2), 4)
    assert got[2] == got[3] == 0.0
    assert abs(got[0] - 0.731) < 0.03


def test_top_k_of_one_is_greedy(sampler: Sampler) -> None:
    assert set(drawn_from(sampler, [0.0, 0.1, 0.05], temperature=2.0, top_k=1).ids) == {1}


def test_top_p_keeps_the_smallest_set_that_reaches_it(sampler: Sampler) -> None:
    row = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert set(drawn_from(sampler, row, temperature=1.0, top_p=0.49).ids) == {0}
    assert set(drawn_from(sampler, row, temperature=1.0, top_p=0.51).ids) == {0, 1}
    assert set(drawn_from(sampler, row, temperature=1.0, top_p=0.9).ids) == {0, 1, 2}


def test_top_p_counts_what_top_k_left(sampler: Sampler) -> None:
    row = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert set(drawn_from(sampler, row, temperature=1.0, top_k=2, top_p=0.6).ids) == {0, 1}
    assert set(drawn_from(sampler, row, temperature=1.0, top_k=2, top_p=0.5).ids) == {0}


def test_top_p_of_a_flat_distribution_looks_beyond_the_candidates(sampler: Sampler) -> None:
    row = np.linspace(0.01, 0.0, 2000).tolist()
    ids = drawn_from(sampler, row, temperature=1.0, top_p=0.5).ids
    assert ids.max() < 1010
    assert ids.max() > 800


def test_min_p_is_relative_to_the_most_likely(sampler: Sampler) -> None:
    row = np.log([0.6, 0.25, 0.1, 0.05]).tolist()
    assert set(drawn_from(sampler, row, temperature=1.0, min_p=0.3).ids) == {0, 1}


def test_a_row_draws_the_same_in_any_batch(sampler: Sampler) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(9, 5000, generator=generator) * 3
    settings: dict[str, Any] = {
        "temperature": [0.7, 1.0, 0.0, 1.3, 1.0, 0.9, 1.0, 1.0, 2.0],
        "top_p": [0.9, 1.0, 1.0, 0.5, 1.0, 0.99, 1.0, 1.0, 0.9999],
        "top_k": [-1, 50, -1, 700, -1, 3, -1, -1, -1],
        "min_p": [0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0],
        "seeds": np.arange(9, dtype=np.uint64) + np.uint64(2**63),
    }
    together = draw(sampler, logits.clone(), draws_of(9, **settings)).ids
    alone = []
    for i in range(9):
        own = draws_of(1, **{name: values[i : i + 1] for name, values in settings.items()})
        alone += draw(sampler, logits[i : i + 1].clone(), own).ids.tolist()
    assert together.tolist() == alone


def test_keys_differ_by_seed_child_and_position() -> None:
    grid = np.array([(s, c, p) for s in range(20) for c in range(10) for p in range(50)])
    values = waits(grid[:, 0].astype(np.uint64), grid[:, 1], grid[:, 2], 3)
    assert len(np.unique(values)) == values.size
    assert values.min() > 0.0
    for column in values.T:
        assert abs(column.mean() - 1.0) < 0.03
        assert np.histogram(np.exp(-column), 10, (0, 1))[0].min() > 850
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.03


def test_recorded_keys_never_change() -> None:
    """The promise of equal tokens after an upgrade; a change needs another `SAMPLER_VERSION`."""
    values = waits(np.array([0, 1, 2**64 - 1], dtype=np.uint64), np.array([0, 3, 7]), np.array([0, 5, 100000]), 2)
    assert np.round(values, 12).tolist() == RECORDED


RECORDED = [[1.740597172115, 0.748203711018], [1.27442165817, 0.465501818539], [0.554666121318, 0.233141455515]]


def test_penalties_move_single_logits(sampler: Sampler) -> None:
    """What each becomes is the largest logit once the others are forbidden."""
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]]).repeat(8, 1)
    penalties = Penalties(
        np.repeat(np.arange(4), 3), np.tile([0, 1, 2], 4), np.tile(np.array([2.0, 2.0, 1.0], np.float32), 4),
        np.tile(np.array([0.0, 0.0, 1.5], np.float32), 4),
    )  # fmt: skip
    alone = Masks(np.arange(8), np.tile(np.int32(1) << np.arange(4, dtype=np.int32), 2)[:, None])
    best = sampler.draw(logits, draws_of(8, penalties=penalties, masks=alone)).best
    assert best.tolist() == [1.0, -4.0, -0.5, 0.0, 2.0, -2.0, 1.0, 0.0]


def test_biases_and_forbidden_tokens(sampler: Sampler) -> None:
    biases = Biases(np.array([0, 1]), np.array([2, 0]), np.array([5.0, -np.inf], np.float32))
    assert draw(sampler, torch.tensor([[1.0, 0.0, 0.0]] * 2), draws_of(2, biases=biases)).ids.tolist() == [2, 1]


def test_masks_allow_only_set_bits(sampler: Sampler) -> None:
    logits = torch.zeros(3, 40)
    logits[:, 39], logits[:, 5] = 3.0, 2.0
    bits = np.zeros((2, 2), dtype=np.int32)
    bits[0, 0], bits[1, 1] = 1 << 5, 1 << 1
    drawn = draw(sampler, logits, draws_of(3, masks=Masks(np.array([0, 2]), bits)))
    assert drawn.ids.tolist() == [5, 39, 33]


def test_a_mask_shorter_than_the_vocabulary_forbids_the_rest(sampler: Sampler) -> None:
    logits = torch.zeros(1, 70)
    logits[0, 69] = 9.0
    drawn = draw(sampler, logits, draws_of(1, masks=Masks(np.array([0]), np.full((1, 2), -1, dtype=np.int32))))
    assert drawn.ids[0] < 64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_faults_stay_in_their_row(sampler: Sampler, temperature: float) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    alone = draw(sampler, logits[3:].clone(), draws_of(1, temperature=temperature, seeds=[3]))
    logits[0, 7], logits[1, 9] = float("nan"), float("inf")
    nothing = Masks(np.array([2]), np.zeros((1, 10), dtype=np.int32))
    drawn = draw(sampler, logits, draws_of(4, temperature=temperature, masks=nothing))
    assert drawn.fault.tolist() == [NOT_A_NUMBER, NOT_A_NUMBER, NOTHING_LEGAL, FINE]
    assert drawn.ids[3] == alone.ids[0]


def test_a_mask_does_not_hide_nan(sampler: Sampler) -> None:
    logits = torch.zeros(1, 64)
    logits[0, 40] = float("nan")
    bits = np.zeros((1, 2), dtype=np.int32)
    bits[0, 0] = 1
    assert draw(sampler, logits, draws_of(1, masks=Masks(np.array([0]), bits))).fault.tolist() == [NOT_A_NUMBER]


def test_logprobs_are_of_the_raw_logits(sampler: Sampler) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]] * 3)
    expected = logits[0].log_softmax(-1)
    biases = Biases(np.array([1]), np.array([0]), np.array([-np.inf], np.float32))
    drawn = draw(sampler, logits, draws_of(3, logprobs=[-1, 2, 0], temperature=[0.0, 0.0, 0.0], biases=biases))
    assert drawn.ids.tolist() == [0, 1, 0]
    assert drawn.scored_rows.tolist() == [1, 2]
    assert drawn.scores is not None
    np.testing.assert_allclose(drawn.scores.logprobs, expected[[1, 0]], atol=1e-6)
    assert drawn.scores.top_ids[0].tolist() == [0, 1]
    np.testing.assert_allclose(drawn.scores.top_logprobs[0], expected[:2], atol=1e-6)
