"""Draw tokens, batched.

Order: repetition, frequency and presence penalties; biases and forbidden tokens; grammar mask; temperature; top-k; top-p over what is left;
min-p against the most likely. Each filter becomes one least weight per row, so tokens of equal weight share their fate and the outcome
does not depend on how a sort breaks ties. The draw is a race: each kept token arrives after a keyed exponential wait divided by its weight,
and the first one wins, which it does in proportion to its weight.

Why a race: the same row in another batch has logits that differ in their last bits. A walk along the sum of weights would move the bounds of
every token, and some of 50,000 lie where the draw falls: the default model in float32 drew another token once in 2,500. In a race with
the same waits only a token that nearly ties with the first can take its place: once in 500,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Floats, Ints
from .draws import FINE, GREEDY_BELOW, NOT_A_NUMBER, NOTHING_LEGAL, Drawn, Draws, Masks, Penalties
from .keys import waits
from .logprobs import Scoring, score
from .transfer import fetch, upload

_BLOCK = 256
"""Tokens per block. First the blocks race, by their sums, then the tokens of the one that wins: some 450 waits instead of 50,000."""
_CANDIDATES = 256
"""Most likely tokens among which top-p's boundary is looked for before the whole vocabulary is sorted."""


class Drawing(Protocol):
    """Draws that a device may still be computing."""

    @property
    def ids(self) -> Tensor:
        """int64 [S]"""
        ...

    @property
    def best(self) -> Tensor:
        """float32 [S]: the largest logit that was left, NaN if any is."""
        ...

    def fetched(self) -> Drawing:
        """The same on the host, once the device's stream has passed this place."""
        ...

    @property
    def host_ids(self) -> Ints:
        """``ids`` of a drawing on the host."""
        ...

    def read(self) -> Drawn:
        """Of a drawing on the host."""
        ...


@dataclass(frozen=True, slots=True)
class TorchDrawing:
    """A `Drawing` by `draw`."""

    ids: Tensor
    best: Tensor
    broken: Tensor | None
    """bool [S]: the row held NaN before it was edited; None = nothing was edited."""
    scored_rows: Ints
    scoring: Scoring | None

    def fetched(self) -> TorchDrawing:
        """See `Drawing.fetched`."""
        broken = None if self.broken is None else fetch(self.broken)
        scoring = None if self.scoring is None else self.scoring.fetched()
        return TorchDrawing(fetch(self.ids), fetch(self.best), broken, self.scored_rows, scoring)

    @property
    def host_ids(self) -> Ints:
        """See `Drawing.host_ids`."""
        ids: Ints = self.ids.numpy()
        return ids

    def read(self) -> Drawn:
        """See `Drawing.read`."""
        faults = _faults(self.best)
        if self.broken is not None:
            faults = np.where(self.broken.numpy(), np.int8(NOT_A_NUMBER), faults)
        return Drawn(self.ids.numpy(), faults, self.scored_rows, None if self.scoring is None else self.scoring.read())


class Sampler(Protocol):
    """Draws from a device's logits, and scores them."""

    def draw(self, logits: Tensor, draws: Draws, rows: Ints | None = None) -> Drawing:
        """One token per draw from the ``rows`` of float32 ``logits`` [n, vocab] (None = all, in order), which may be changed."""
        ...

    def score(self, logits: Tensor, targets: Tensor, top: int) -> Scoring:
        """Scores of ``targets`` int64 [n] under float32 ``logits`` [n, vocab], with the ``top`` most likely of each."""
        ...


class TorchSampler:
    """A `Sampler` for any device, and what the kernels' is tested by."""

    @torch.inference_mode()
    def draw(self, logits: Tensor, draws: Draws, rows: Ints | None = None) -> Drawing:
        """See `Sampler.draw`."""
        return draw(logits if rows is None else logits[_on(rows, logits)], draws)

    @torch.inference_mode()
    def score(self, logits: Tensor, targets: Tensor, top: int) -> Scoring:
        """See `Sampler.score`."""
        return score(logits, targets, top)


def draw(logits: Tensor, draws: Draws) -> TorchDrawing:
    """One token per row of ``logits`` float32 [S, vocab], which is changed in place. The host never waits for a CUDA device."""
    if draws.plain:
        best = logits.max(dim=-1)
        return TorchDrawing(best.indices, best.values, None, np.empty(0, dtype=np.int64), None)
    scored = np.flatnonzero(draws.logprobs >= 0)
    raw = logits[_on(scored, logits)] if len(scored) else logits
    broken = _edit(logits, draws)
    best = logits.max(dim=-1)
    ids = best.indices
    sampled = np.flatnonzero(draws.temperature >= GREEDY_BELOW)
    if len(sampled):
        rows = _on(sampled, logits)
        ids[rows] = _sample(logits[rows], best.values[rows], draws, sampled)
    scoring = score(raw, ids[_on(scored, ids)], int(draws.logprobs.max())) if len(scored) else None
    return TorchDrawing(ids, best.values, broken, scored, scoring)


def _faults(best: Tensor) -> NDArray[np.int8]:
    """What the largest logit of each row [S] says of the row: NaN spreads through a maximum, and an empty row's is -inf."""
    values = best.numpy()
    faults = np.full(len(values), FINE, dtype=np.int8)
    faults[np.isneginf(values)] = NOTHING_LEGAL
    faults[np.isnan(values) | np.isposinf(values)] = NOT_A_NUMBER
    return faults


def _on(values: NDArray[Any], like: Tensor) -> Tensor:
    return upload(values, like.device)


def _edit(logits: Tensor, draws: Draws) -> Tensor:
    """Penalise, bias and mask in place; returns bool [S]: rows that held NaN (which a mask would hide)."""
    broken = logits.max(dim=-1).values.isnan()
    if draws.penalties is not None:
        _penalise(logits, draws.penalties)
    if draws.biases is not None:
        at = (_on(draws.biases.rows, logits), _on(draws.biases.ids, logits))
        logits.index_put_(at, _on(draws.biases.values, logits), accumulate=True)
    if draws.masks is not None:
        _mask(logits, draws.masks)
    return broken


def _penalise(logits: Tensor, penalties: Penalties) -> None:
    at = (_on(penalties.rows, logits), _on(penalties.ids, logits))
    values = logits[at]
    factor = _on(penalties.repetition, logits)
    values = torch.where(values > 0, values / factor, values * factor)
    logits[at] = values - _on(penalties.subtract, logits)


def _mask(logits: Tensor, masks: Masks) -> None:
    """Forbid what is not set. Bits beyond the vocabulary are ignored; a vocabulary beyond the bits is forbidden."""
    vocab = logits.shape[-1]
    bits = np.unpackbits(masks.bits.view(np.uint8), axis=-1, bitorder="little")[:, :vocab]
    forbidden = np.ones((len(bits), vocab), dtype=np.bool_)
    forbidden[:, : bits.shape[1]] = bits == 0
    rows = _on(masks.rows, logits)
    blocked = _on(forbidden, logits)
    logits[rows] = logits[rows].masked_fill_(blocked, float("-inf"))


def _sample(logits: Tensor, best: Tensor, draws: Draws, rows: Ints) -> Tensor:
    """Token ids int64 [n] for the rows (numbers into ``draws``) whose edited logits [n, vocab] and maxima [n] are given."""
    temperature = _on(draws.temperature[rows], logits)[:, None]
    weights = ((logits - best[:, None]) / temperature).exp_()
    least = _on(draws.min_p[rows], logits)
    top_k, top_p = draws.top_k[rows], draws.top_p[rows]
    cut = np.flatnonzero(((top_k > 0) & (top_k < logits.shape[-1])) | (top_p < 1.0))
    if len(cut):
        at = _on(cut, logits)
        least[at] = torch.maximum(least[at], _least_weight(weights[at], top_k[cut], top_p[cut]))
    weights.masked_fill_(weights < least[:, None], 0.0)
    entrants = -(-logits.shape[-1] // _BLOCK) + _BLOCK
    return _pick(weights, _on(waits(draws.seeds[rows], draws.children[rows], draws.positions[rows], entrants), logits))


def _least_weight(weights: Tensor, top_k: Ints, top_p: Floats) -> Tensor:
    """float32 [n]: the smallest weight that top-k and top-p let through, per row of ``weights`` [n, vocab]."""
    vocab = weights.shape[-1]
    limit = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)
    if weights.device.type != "cpu":  # asking whether a part suffices would make the host wait for the device
        return _boundary(weights, weights.sort(dim=-1, descending=True).values, limit, top_p)[0]
    bounded = limit[limit < vocab]
    wanted = min(vocab, max(_CANDIDATES, int(bounded.max()) if len(bounded) else 0))
    ranked = weights.topk(wanted, dim=-1).values
    least, settled = _boundary(weights, ranked, limit, top_p)
    if not bool(settled.all()):
        rest = torch.nonzero(~settled).squeeze(1)
        at = rest.numpy()
        ordered = weights[rest].sort(dim=-1, descending=True).values
        least[rest] = _boundary(weights[rest], ordered, limit[at], top_p[at])[0]
    return least


def _boundary(weights: Tensor, ranked: Tensor, limit: Ints, top_p: Floats) -> tuple[Tensor, Tensor]:
    """The least kept weight [n] among the ``ranked`` [n, m] most likely, and whether it lies among them [n]."""
    found = ranked.shape[-1]
    last = _on(np.minimum(limit, found) - 1, weights)[:, None]
    cut = _on(limit < weights.shape[-1], weights)
    least = torch.where(cut, ranked.gather(1, last).squeeze(1), 0.0)
    total = weights.masked_fill(weights < least[:, None], 0.0).double().sum(dim=-1)
    needed = total * _on(top_p.astype(np.float64), weights)
    reached = ranked.double().cumsum(dim=-1)
    index = (reached < needed[:, None]).sum(dim=-1)
    everything = _on(top_p >= 1.0, weights)
    settled = everything | (index < found) | (found == weights.shape[-1])
    nucleus = ranked.gather(1, index.clamp(max=found - 1)[:, None]).squeeze(1)
    return torch.where(everything, least, torch.maximum(least, nucleus)), settled


def _pick(weights: Tensor, waits: Tensor) -> Tensor:
    """The token that wins each row of ``weights`` [n, vocab]; ``waits`` float64 [n, blocks + `_BLOCK`]. One of weight 0 never does."""
    n, vocab = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab % _BLOCK)).view(n, -1, _BLOCK)
    sums = padded.double().sum(dim=-1)
    blocks = sums.shape[1]
    block = (waits[:, :blocks] / sums).argmin(dim=-1)
    inside = padded[torch.arange(n, device=weights.device), block]
    return block * _BLOCK + (waits[:, blocks:] / inside.double()).argmin(dim=-1)
