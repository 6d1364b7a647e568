"""Compiled draws and log-probabilities against torch's, over vocabularies, filters and edits of any kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from phloem_gpu_worker.batch import Ints
from phloem_gpu_worker.draws import FINE, Biases, Draws, Masks, Penalties
from phloem_gpu_worker.kernel_sampler import KernelSampler
from phloem_gpu_worker.logprobs import Scores
from phloem_gpu_worker.sampler import Drawing, TorchSampler

from .compiled import EACH_LEVEL, kernels
from .test_worker_sampler import draws_of

VOCABULARIES = [1, 2, 15, 16, 17, 31, 64, 65, 255, 256, 257, 300, 1000, 4097, 32000]
LARGEST = 151_936
ORACLE = TorchSampler()


def compiled(level: str, threads: int = 2) -> KernelSampler:
    return KernelSampler(kernels(level, threads))


def logits_of(rows: int, vocab: int, rng: np.random.Generator) -> Tensor:
    """Flat and steep rows, some of them coarse, so that many logits are equal."""
    scale = rng.choice([0.0, 0.01, 1.0, 3.0, 20.0], (rows, 1))
    values = rng.standard_normal((rows, vocab)) * scale
    coarse = rng.random((rows, 1)) < 0.3
    return torch.from_numpy(np.where(coarse, np.round(values * 2) / 2, values).astype(np.float32))


def filters_of(rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Each filter alone, and several together."""
    return {
        "temperature": rng.choice([0.0, 1e-5, 0.3, 0.7, 1.0, 1.5, 100.0], rows),
        "top_p": rng.choice([1.0, 1.0, 1e-30, 0.05, 0.5, 0.9, 0.99, 0.999999], rows),
        "top_k": rng.choice([-1, -1, 1, 2, 5, 50, 63, 64, 65, 1000, 2**31 - 1], rows),
        "min_p": rng.choice([0.0, 0.0, 0.0, 1e-6, 0.05, 0.5, 1.0], rows),
        "seeds": rng.integers(0, 2**64, rows, dtype=np.uint64),
        "children": rng.integers(0, 100, rows),
        "positions": rng.integers(0, 100_000, rows),
    }


def edits_of(rows: int, vocab: int, rng: np.random.Generator) -> dict[str, Any]:
    """Edits of some rows: several tokens of each are penalised, and biased up to three times."""
    penalised = [(row, int(id_)) for row in _some(rows, rng) for id_ in rng.permutation(vocab)[: rng.integers(1, 40)]]
    biased = [(row, int(id_)) for row in _some(rows, rng) for id_ in rng.integers(0, vocab, 20) for _ in range(id_ % 4)]
    masked = _some(rows, rng)
    words = max(1, int(rng.choice([-(-vocab // 32), vocab // 64, vocab // 32 + 3])))
    density = rng.choice([0.0, 0.002, 0.5, 1.0], (len(masked), 1, 1), p=[0.1, 0.4, 0.3, 0.2])
    bits = np.packbits(rng.random((len(masked), words, 32)) < density, axis=-1, bitorder="little")
    return {
        "penalties": Penalties(
            *_columns(penalised),
            rng.choice([0.01, 0.5, 1.0, 1.3, 2.0], len(penalised)).astype(np.float32),
            rng.choice([-2.0, 0.0, 0.5, 30.0], len(penalised)).astype(np.float32),
        )
        if penalised
        else None,
        "biases": Biases(
            *_columns(biased), rng.choice([-np.inf, -100.0, -1.0, 2.5, 100.0], len(biased)).astype(np.float32)
        )
        if biased
        else None,
        "masks": Masks(np.array(masked), bits.reshape(len(masked), -1).view(np.int32)) if masked else None,
    }


def _some(rows: int, rng: np.random.Generator) -> list[int]:
    return np.flatnonzero(rng.random(rows) < 0.4).tolist()


def _columns(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    rows, ids = zip(*pairs, strict=True)
    return np.array(rows), np.array(ids)


def spoil(logits: Tensor, rng: np.random.Generator) -> None:
    """Make some rows hold what no model should give."""
    rows, vocab = logits.shape
    for bad in (float("nan"), float("inf"), float("-inf")):
        for row in np.flatnonzero(rng.random(rows) < 0.1).tolist():
            logits[row, rng.integers(0, vocab, rng.integers(1, 4))] = bad
    logits[rng.random(rows) < 0.05] = float("-inf")


def assert_like_torch(level: str, logits: Tensor, draws: Draws) -> None:
    before = logits.clone()
    drawing = compiled(level).draw(logits, draws)
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0)), "raw logits are only read"
    expected = ORACLE.draw(before, draws)
    np.testing.assert_array_equal(drawing.best.numpy(), expected.best.numpy())
    got, wanted = drawing.read(), expected.read()
    assert got.fault.tolist() == wanted.fault.tolist()
    fine = got.fault == FINE
    assert got.ids[fine].tolist() == wanted.ids[fine].tolist()
    assert got.ids.min() >= 0
    assert got.ids.max() < logits.shape[-1]


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_filters_draw_what_torch_draws(level: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(3):
        assert_like_torch(level, logits_of(40, vocab, rng), draws_of(40, **filters_of(40, rng)))


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_edits_and_faults_are_those_of_torch(level: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(3):
        logits = logits_of(40, vocab, rng)
        spoil(logits, rng)
        assert_like_torch(level, logits, draws_of(40, **filters_of(40, rng), **edits_of(40, vocab, rng)))


@pytest.mark.parametrize("level", EACH_LEVEL)
def test_a_large_vocabulary(level: str) -> None:
    rng = np.random.default_rng(1)
    logits = logits_of(12, LARGEST, rng)
    assert_like_torch(level, logits, draws_of(12, **filters_of(12, rng), **edits_of(12, LARGEST, rng)))


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("top_k", [-1, 3, 700])
def test_equal_logits_share_their_fate(level: str, top_k: int) -> None:
    """A group at the boundary is kept whole: each of its tokens is drawn."""
    row = torch.full((1, 3000), -40.0)
    row[0, 100:2900:7], row[0, 50] = 1.0, 2.0
    draws = draws_of(4000, temperature=1.0, top_k=top_k, top_p=0.6)
    ids = compiled(level).draw(row.repeat(4000, 1), draws).read().ids
    assert set(ids.tolist()) == {50, *range(100, 2900, 7)}


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize(
    "filters", [{}, {"temperature": 0.6}, {"top_k": 100}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 300, "top_p": 0.5}]
)
def test_tokens_are_drawn_as_often_as_their_weights_say(level: str, filters: dict[str, Any]) -> None:
    """Pearson's statistic over those that are kept; what is filtered out is never drawn."""
    vocab, rows, parts = 600, 4000, 5
    logits = np.random.default_rng(9).standard_normal(vocab) * 1.5
    expected = kept_shares(logits, **filters)
    counts = np.zeros(vocab)
    for part in range(parts):
        draws = draws_of(rows, **{"temperature": 1.0, **filters}, seeds=np.arange(rows) + part * rows)
        drawn = compiled(level).draw(torch.from_numpy(logits.astype(np.float32)).repeat(rows, 1), draws).read()
        counts += np.bincount(drawn.ids, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    often = expected * rows * parts >= 5
    seen = np.append(counts[often], counts[~often].sum())
    due = np.append(expected[often], expected[~often].sum()) * rows * parts
    seen, due = seen[due > 0], due[due > 0]
    freedom = len(due) - 1
    assert abs(((seen - due) ** 2 / due).sum() - freedom) < 4 * np.sqrt(2 * freedom)


def kept_shares(
    logits: NDArray[np.float64], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Probabilities after the filters, by sorting."""
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-weights)
    kept = weights[order]
    if top_k:
        kept[top_k:] = 0.0
    kept[np.searchsorted(np.cumsum(kept), top_p * kept.sum()) + 1 :] = 0.0
    kept[kept < min_p] = 0.0
    shares = np.zeros(len(logits))
    shares[order] = kept / kept.sum()
    return shares


def part_of(draws: Draws, rows: Ints) -> Draws:
    """The draws of ``rows``, ascending, as if there were no others."""
    penalties, biases, masks = draws.penalties, draws.biases, draws.masks
    assert penalties is not None
    assert biases is not None
    assert masks is not None
    of = {name: np.isin(edit.rows, rows) for name, edit in (("p", penalties), ("b", biases), ("m", masks))}
    number = np.full(len(draws.temperature), -1)
    number[rows] = np.arange(len(rows))
    fields = ("temperature", "top_p", "top_k", "min_p", "seeds", "children", "positions", "logprobs")
    return replace(
        draws,
        **{name: getattr(draws, name)[rows] for name in fields},
        penalties=Penalties(
            number[penalties.rows[of["p"]]],
            penalties.ids[of["p"]],
            penalties.repetition[of["p"]],
            penalties.subtract[of["p"]],
        ),
        biases=Biases(number[biases.rows[of["b"]]], biases.ids[of["b"]], biases.values[of["b"]]),
        masks=Masks(number[masks.rows[of["m"]]], masks.bits[of["m"]]),
    )


def bits_by_row(drawing: Drawing) -> list[bytes]:
    """All that was found out about each row, to the last bit, if logprobs of all were wanted."""
    drawn = drawing.read()
    scores = drawn.scores
    assert scores is not None
    found = (drawing.best.numpy(), drawn.ids, drawn.fault, scores.logprobs, scores.top_ids, scores.top_logprobs)
    return [b"".join(part[row].tobytes() for part in found) for row in range(len(drawn.ids))]


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("vocab", [300, 20_000])
def test_a_rows_draw_is_the_same_bit_for_bit_whatever_is_drawn_beside_it(level: str, vocab: int) -> None:
    """In random batches and alone, with one to three threads (which share what is large), from rows picked out or copied out."""
    rng = np.random.default_rng(vocab)
    rows = 30
    logits = logits_of(rows, vocab, rng)
    spoil(logits, rng)
    draws = draws_of(rows, **filters_of(rows, rng), **edits_of(rows, vocab, rng), logprobs=7)
    expected = bits_by_row(compiled(level).draw(logits, draws))
    batches = [np.array([row]) for row in range(rows)]
    batches += [np.sort(rng.permutation(rows)[: rng.integers(2, 20)]) for _ in range(20)]
    for number, batch in enumerate(batches):
        sampler, part = compiled(level, 1 + number % 3), part_of(draws, batch)
        copied = logits[torch.from_numpy(batch)]
        drawing = sampler.draw(logits, part, batch) if number % 2 else sampler.draw(copied, part)
        assert bits_by_row(drawing) == [expected[row] for row in batch]


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_scores_are_those_of_torch(level: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = logits_of(9, vocab, rng)
    logits[0, rng.integers(0, vocab, 3)] = float("-inf")
    logits[1] = torch.from_numpy(np.where(rng.random(vocab) < 0.5, np.float32(1), np.nextafter(np.float32(1), 2)))
    targets = torch.from_numpy(rng.integers(0, vocab, 9))
    for top in {0, 1, 5, min(100, vocab), vocab, vocab + 5}:
        got = compiled(level).score(logits, targets, top).read()
        expected = ORACLE.score(logits, targets, top).read()
        assert got.ids.tolist() == targets.tolist()
        assert got.top_ids.shape == expected.top_ids.shape
        np.testing.assert_allclose(got.logprobs, expected.logprobs, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(got.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=2e-5)
        assert_in_order(got, logits)


def assert_in_order(scores: Scores, logits: Tensor) -> None:
    """The alternatives are distinct, the most likely first; of equal ones those of lower number, and first."""
    for ids, row in zip(scores.top_ids, logits.numpy(), strict=True):
        assert ids.tolist() == np.lexsort((np.arange(len(row)), -row))[: len(ids)].tolist()


@pytest.mark.parametrize("level", EACH_LEVEL)
def test_scores_of_what_is_no_number_are_none(level: str) -> None:
    logits = torch.zeros(3, 500)
    logits[0, 70], logits[1] = float("nan"), float("-inf")
    scores = compiled(level).score(logits, torch.tensor([1, 2, 3]), 4).read()
    assert np.isnan(scores.logprobs).tolist() == [True, True, False]
    assert np.isnan(scores.top_logprobs[:2]).all()
    assert scores.top_ids.min() >= 0
    assert scores.top_ids.max() < 500
