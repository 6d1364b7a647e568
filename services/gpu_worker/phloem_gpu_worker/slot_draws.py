"""From slots to draws: the parameters of the rows that draw, and the edits of those that need any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .batch import Floats, Ints
from .draws import Biases, Draws, Masks, Penalties
from .slots import Slots, Special

Bits = NDArray[np.int32]


class DrawGatherer:
    """Gathers draws; what does not change from step to step is kept while the same slots draw."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._chosen: Ints | None = None
        self._version = -1
        self._kept: Draws | None = None
        self._special: list[int] = []

    def gather(self, chosen: Ints, masks: Mapping[int, Bits]) -> Draws:
        """Draws for the slots ``chosen``, in this order.

        Args:
            masks: the grammar mask of each constrained slot among them.
        """
        slots = self._slots
        if self._kept is None or self._chosen is not chosen or self._version != slots.version:
            self._kept = _parameters(slots, chosen)
            self._special = np.flatnonzero(slots.is_special[chosen]).tolist()
            self._chosen, self._version = chosen, slots.version
        positions = slots.length[chosen] - slots.prompt[chosen]
        if not self._special:
            return replace(self._kept, positions=positions)
        edits = _Edits()
        for row in self._special:
            slot = int(chosen[row])
            special = slots.special[slot]
            assert special is not None
            edits.add(row, special, int(positions[row]), masks[slot] if special.constrained else None)
        return replace(
            self._kept,
            positions=positions,
            penalties=edits.penalties(),
            biases=edits.biases(),
            masks=edits.masks(),
        )


def _parameters(slots: Slots, chosen: Ints) -> Draws:
    """The draws without positions and edits."""
    logprobs = [-1 if (special := slots.special[slot]) is None else special.params.logprobs for slot in chosen.tolist()]
    return Draws(
        temperature=slots.temperature[chosen],
        top_p=slots.top_p[chosen],
        top_k=slots.top_k[chosen],
        min_p=slots.min_p[chosen],
        seeds=slots.seeds[chosen],
        children=slots.children[chosen],
        positions=np.empty(0, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.int64),
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
