"""A step between its launch and its result: what must be remembered of it, since the plans after it change the slots meanwhile."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import Ints, ScoreSpan
from .draws import Wanted
from .layout import Rows
from .outcome import Outcome
from .runner import Finished

_NONE = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Launched:
    """Made by `WorkerCore.begin`, used up by `WorkerCore.finish`."""

    number: int
    rows: Rows
    generations: Ints
    """Of the rows' slots when the step began."""
    rids: NDArray[np.object_]
    """Requests that the rows belong to, as bytes."""
    busy_before: bool
    """Whether any sequence was live before the step's plan."""
    outcome: Outcome
    drawing: Ints = field(default_factory=lambda: _NONE)
    """Numbers of the rows that draw; until the draw is launched, of those that may."""
    constrained: dict[int, int] = field(default_factory=dict)
    """Slots whose draw needs a mask, and their rows."""
    late: bool = False
    """The draw needs what only the result of the step before tells."""
    forward: Any = None
    """None if no row runs."""
    spans: tuple[tuple[ScoreSpan, int | None], ...] = ()
    """Prompt tokens to be scored, and the sequence's first token where it is to be reported."""
    wanted: Wanted | None = None
    places: Ints = field(default_factory=lambda: _NONE)
    """Positions of the tokens that are drawn."""
    pending: Future[Finished] | None = None
    """There once the draw is launched."""
    dead: list[int] = field(default_factory=list)
    """Slots of rows whose sequence turned out to have failed in a step before: what is drawn for them means nothing."""

    @property
    def drawn(self) -> bool:
        """Whether nothing of the step is left to be launched."""
        return self.forward is None or self.pending is not None

    @property
    def done(self) -> bool:
        """Whether the device has computed the whole step."""
        return self.forward is None or (self.pending is not None and self.pending.done())

    def bury(self, slot: int, generation: int) -> None:
        """The sequence that ``slot`` held in this generation has failed."""
        rows = np.flatnonzero(self.rows.slots == slot)
        if len(rows) and self.generations[rows[0]] == generation:
            self.dead.append(slot)

    def alive(self, slots: Ints) -> NDArray[np.bool_]:
        """Which of these slots' rows still mean anything."""
        return ~np.isin(slots, self.dead) if self.dead else np.ones(len(slots), dtype=np.bool_)
