"""What a sampler is asked, and what it answers: struct-of-arrays over the rows that draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batch import Floats, Ints
from .logprobs import Scores

FINE, NOT_A_NUMBER, NOTHING_LEGAL = 0, 1, 2
"""Values of `Drawn.fault`."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Changes to single logits: entry j concerns logit ``ids[j]`` of row ``rows[j]``; a pair occurs once."""

    rows: Ints
    """Ascending, as those of the other edits."""
    ids: Ints
    repetition: Floats
    """Divides a positive logit, multiplies a negative one; 1 = none. Applied first."""
    subtract: Floats
    """frequency_penalty x count, plus presence_penalty if the count is not 0."""


@dataclass(frozen=True, slots=True)
class Biases:
    """Added to single logits after penalties; a pair that occurs twice gets both."""

    rows: Ints
    ids: Ints
    values: Floats
    """-inf forbids the token."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Tokens a grammar allows: row ``rows[j]`` may draw those whose bit is set in ``bits[j]``."""

    rows: Ints
    bits: NDArray[np.int32]
    """[n, ceil(vocab / 32)], least significant bit first."""


@dataclass(frozen=True, slots=True)
class Draws:
    """One entry per row that draws; ranges as in `phloem_proto.messages.SamplingParams`."""

    temperature: Floats
    top_p: Floats
    top_k: Ints
    """-1 = all."""
    min_p: Floats
    seeds: NDArray[np.uint64]
    children: Ints
    positions: Ints
    """Output position: how many output tokens come before this one."""
    logprobs: Ints
    """-1 = none, else how many alternatives."""
    penalties: Penalties | None = None
    biases: Biases | None = None
    masks: Masks | None = None

    @property
    def plain(self) -> bool:
        """Whether all that is wanted is the largest logit of each row."""
        edited = self.penalties is not None or self.biases is not None or self.masks is not None
        return not edited and not (self.temperature >= GREEDY_BELOW).any() and not (self.logprobs >= 0).any()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The draws of a step: how, from which logits, and whose they are."""

    draws: Draws
    slots: Ints
    """The slot whose newest token each draw becomes; distinct."""
    rows: Ints | None = None
    """Numbers of the logits that are drawn from; None = all, in order."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token per row."""

    ids: Ints
    fault: NDArray[np.int8]
    """`FINE`, or why the token of this row means nothing."""
    scored_rows: Ints
    """Rows whose logprobs were wanted."""
    scores: Scores | None = None
    """One entry per scored row, with as many alternatives as the most demanding row wanted."""


GREEDY_BELOW = 1e-5
"""Temperatures below this take the largest logit."""
