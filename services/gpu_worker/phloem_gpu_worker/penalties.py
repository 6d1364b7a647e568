"""Counts of the tokens of one sequence, for its penalties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .batch import Floats, Ints


class TokenCounts:
    """Which tokens occur in prompt or output, and how often in the output. Grows by doubling; adding a token is O(1)."""

    def __init__(self, prompt: Iterable[int]) -> None:
        """``prompt``: the tokens that the repetition penalty knows beside the output; empty if it is not asked for."""
        distinct = dict.fromkeys(prompt)
        self._index = {token: place for place, token in enumerate(distinct)}
        room = max(64, 2 * len(distinct))
        self._ids = np.zeros(room, dtype=np.int64)
        self._ids[: len(distinct)] = list(distinct)
        self._counts = np.zeros(room, dtype=np.float32)

    @property
    def ids(self) -> Ints:
        """Distinct tokens, in order of first occurrence."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> Floats:
        """How often each of `ids` occurs in the output."""
        return self._counts[: len(self._index)]

    def add(self, token: int) -> None:
        """Count one more output token."""
        place = self._index.setdefault(token, len(self._index))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token
        self._counts[place] += 1
