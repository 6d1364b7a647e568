"""From slots to draws: the parameters of the rows that draw, and the edits of those that need any."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .batch import Floats, Ints
from .draws import Biases, Draws, Masks, Penalties
from .slots import Slots, Special

Bits = NDArray[np.int32]


def gather_draws(slots: Slots, chosen: Ints, masks: Mapping[int, Bits]) -> Draws:
    """Draws for the slots ``chosen``, in this order.

    Args:
        masks: the grammar mask of each constrained slot among them.
    """
    positions = slots.length[chosen] - slots.prompt[chosen]
    logprobs = np.full(len(chosen), -1, dtype=np.int64)
    edits = _Edits()
    for row in np.flatnonzero(slots.is_special[chosen]).tolist():
        slot = int(chosen[row])
        special = slots.special[slot]
        assert special is not None
        logprobs[row] = special.params.logprobs
        edits.add(row, special, int(positions[row]), masks[slot] if special.constrained else None)
    return Draws(
        temperature=slots.temperature[chosen],
        top_p=slots.top_p[chosen],
        top_k=slots.top_k[chosen],
        min_p=slots.min_p[chosen],
        seeds=slots.seeds[chosen],
        children=slots.children[chosen],
        positions=positions,
        logprobs=logprobs,
        penalties=edits.penalties(),
        biases=edits.biases(),
        masks=edits.masks(),
    )


class _Edits:
    """Collects the edits of single rows and joins them."""

    def __init__(self) -> None:
        self._penalties: list[tuple[int, Ints, Floats, Floats]] = []
        self._biases: list[tuple[int, Ints, Floats]] = []
        self._masks: list[tuple[int, Bits]] = []

    def add(self, row: int, special: Special, position: int, bits: Bits | None) -> None:
        params, counts = special.params, special.counts
        if counts is not None and len(counts.ids):
            seen = counts.counts
            subtract = params.frequency_penalty * seen + params.presence_penalty * (seen > 0)
            repetition = np.full(len(seen), params.repetition_penalty, dtype=np.float32)
            self._penalties.append((row, counts.ids, repetition, subtract.astype(np.float32)))
        if len(special.bias_ids):
            self._biases.append((row, special.bias_ids, special.bias_values))
        if position < params.min_tokens and (bits is None or _allows_other(bits, special.ending_ids)):
            forbidden = np.full(len(special.ending_ids), -np.inf, dtype=np.float32)
            self._biases.append((row, special.ending_ids, forbidden))
        if bits is not None:
            self._masks.append((row, bits))

    def penalties(self) -> Penalties | None:
        if not self._penalties:
            return None
        rows = np.concatenate([np.full(len(ids), row) for row, ids, _, _ in self._penalties])
        ids, repetition, subtract = (np.concatenate([entry[i] for entry in self._penalties]) for i in (1, 2, 3))
        return Penalties(rows, ids, repetition, subtract)

    def biases(self) -> Biases | None:
        if not self._biases:
            return None
        rows = np.concatenate([np.full(len(ids), row) for row, ids, _ in self._biases])
        return Biases(rows, *(np.concatenate([entry[i] for entry in self._biases]) for i in (1, 2)))

    def masks(self) -> Masks | None:
        if not self._masks:
            return None
        return Masks(np.array([row for row, _ in self._masks]), np.stack([bits for _, bits in self._masks]))


def _allows_other(bits: Bits, ending: Ints) -> bool:
    """Whether a mask allows any token beside the ending ones. A finished grammar does not: then it beats ``min_tokens``."""
    rest = bits.copy()
    inside = ending[ending < 32 * len(bits)]
    np.bitwise_and.at(rest, inside // 32, ~(np.int64(1) << (inside % 32)).astype(np.int32))
    return bool(rest.any())
