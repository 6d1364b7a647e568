"""A trial of a model before it is served: in parts, beside others and through a paged pool it must compute what it computes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .attention_torch import TorchAttention
from .batch import Batch, Ints, token_positions
from .errors import BadWeights, UnsupportedModel
from .hf_compute import HfCompute, HfModel
from .kv_pool import KvPool

_PARTS = ((5, 3), (1, 1), (1, 2), (2, 1), (1, 1), (1, 1))
"""How many tokens further each of two texts gets in each pass. Most tokens come first in their part: whatever is forgotten between parts
shows at those."""
_LENGTHS = tuple(sum(text) for text in zip(*_PARTS, strict=True))
_PAGE_SIZE, _PAGES = 4, 4
"""Of each text."""
_SAME = 5e-3
"""How far results may be apart that differ at most in the order of sums."""
_ROUNDING = 2.0
"""How many times as far as in one piece results in parts may be off; for models of 24 to 40 layers in bfloat16 it was 0.9 to 1.3 times."""
_MOST = 0.2
"""How far results may be off whatever rounding does."""


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens, and what the model makes of them by itself in one piece."""

    ids: Tensor
    """int64 [L]"""
    hidden: Tensor
    """[L, hidden]"""
    logits: Tensor
    """[L, vocab]"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to compute, and with what result."""

    texts: tuple[Text, ...]

    @property
    def vocab_size(self) -> int:
        return self.texts[0].logits.shape[-1]

    @classmethod
    def of(cls, causal: Any, vocab_size: int, device: torch.device) -> Trial:
        """Let a model of ``transformers``, still attending in its own way, compute two short texts of random tokens.

        Raises:
            UnsupportedModel: given positions are not those that it gives itself.
            BadWeights: what comes out is not a number.
        """
        draw = np.random.default_rng(1)
        body, texts = causal.get_decoder(), []
        for length in _LENGTHS:
            ids = torch.from_numpy(draw.integers(0, vocab_size, length)).to(device)[None]
            logits = causal(input_ids=ids, use_cache=False).logits[0]
            hidden = body(input_ids=ids, use_cache=False).last_hidden_state[0]
            if not logits.isfinite().all():
                raise BadWeights("the weights hold what is not a number, or too large a one")
            positions = torch.arange(length, device=device)[None]
            counted = body(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0]
            if not _apart(counted, hidden) <= _SAME:
                raise UnsupportedModel("it counts positions in a way of its own")
            texts.append(Text(ids[0], hidden, logits))
        return cls(tuple(texts))


def check(model: HfModel, trial: Trial) -> None:
    """Raises `UnsupportedModel` if ``model`` does not compute what ``trial`` says."""
    whole, parts = _computed(model, trial, (_LENGTHS,)), _computed(model, trial, _PARTS)
    for text, in_one, in_parts, first in zip(trial.texts, whole, parts, _PARTS[0], strict=True):
        off = _apart(model.head(text.hidden), text.logits)
        if not off <= _SAME:
            raise UnsupportedModel(f"its head can't be computed by itself ({off:.2g} off)")
        rounding = _apart(in_one, text.hidden)
        if not rounding <= _MOST:
            raise UnsupportedModel(f"with our attention it computes something else ({rounding:.2g} off)")
        limit = min(_MOST, max(_SAME, _ROUNDING * rounding))
        off = _apart(in_parts[first:], text.hidden[first:])
        if not off <= limit:
            raise UnsupportedModel(
                f"in parts it computes something else ({off:.2g} off): not all of its state is in keys and values"
            )


def _computed(model: HfModel, trial: Trial, passes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Hidden states of each text [L, hidden], all texts in one batch, so many tokens of each in a pass."""
    texts = len(trial.texts)
    pool = KvPool(model.arch, _PAGES * texts, _PAGE_SIZE, model.dtype, model.device)
    compute = HfCompute(model, pool, TorchAttention())
    tables = np.arange(_PAGES * texts - 1, -1, -1, dtype=np.int64).reshape(texts, _PAGES)
    found: list[list[Tensor]] = [[] for _ in trial.texts]
    starts = np.zeros(texts, dtype=np.int64)
    for counts in passes:
        taken = np.array(counts, dtype=np.int64)
        rows = zip(trial.texts, starts, taken, strict=True)
        tokens = torch.cat([text.ids[start : start + count] for text, start, count in rows])
        states = compute.hidden(_batch(starts, taken, tables), tokens)
        for row, some in zip(found, torch.split(states, list(counts)), strict=True):
            row.append(some)
        starts = starts + taken
    return [torch.cat(row) for row in found]


def _batch(starts: Ints, counts: Ints, tables: Ints) -> Batch:
    """Rows of which no logits are wanted, and whose tokens the caller has."""
    positions = token_positions(starts, counts)[1]
    return Batch(np.zeros_like(positions), positions, starts, counts, tables, np.array([], dtype=np.int64))


def _apart(got: Tensor, wanted: Tensor) -> float:
    """The median over tokens of how far they differ, as a share of what is wanted. A median, since rounding may send a token of a mixture
    to another expert, and that one is far off then."""
    off = (got.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1).clamp(min=1e-6)
    return float(off.median())
