"""How long a request that finds nothing cached waits while others that do never stop coming."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from phloem_proto.codec import pack_ids

from .calls import Call
from .conversations import drawn


@dataclass(frozen=True, slots=True)
class Hits:
    """A stream that no worker could keep up with: whenever one starts, the next comes."""

    prefix_tokens: int = 1024
    """Cached, and common to all of them."""
    own_tokens: int = 32
    answer_tokens: int = 8
    waiting: int = 16
    """So many wait at any time."""
    running: int = 8
    """Rows at once."""
    miss_tokens: int = 1024
    """Prompt of the one that has nothing cached."""
    miss_at_s: float = 2.0

    @property
    def tokens(self) -> int:
        """All that can be needed at once, and as much again, so that room is never what somebody waits for."""
        hits = (self.own_tokens + self.answer_tokens) * (self.running + self.waiting)
        return 2 * (self.prefix_tokens + self.miss_tokens + self.answer_tokens + hits)


class Stream:
    """The clients of `Hits`; the last of them is the miss."""

    def __init__(self, hits: Hits, seed: int) -> None:
        self._hits = hits
        self._rng = random.Random(f"{seed}/hits")
        self._prefix = pack_ids(drawn(self._rng, hits.prefix_tokens))
        self._answer = array("I", [0] * hits.answer_tokens)
        self._first: Call | None = Call(self._prefix, self._answer)  # brings the prefix into the cache
        self._cached = False
        self._miss_sent = self._over = False
        self.miss = Call(pack_ids(drawn(self._rng, hits.miss_tokens)), self._answer)

    def due(self, now: float, waiting: int) -> list[Call]:
        """See `calls.Clients`."""
        calls: list[Call] = []
        if self._first is not None:
            calls.append(self._first)
            self._first = None
        if self._cached and not self._over:
            calls.extend(self._hit() for _ in range(self._hits.waiting - waiting))
        if not self._miss_sent and now >= self._hits.miss_at_s:
            self._miss_sent = True
            calls.append(self.miss)
        return calls

    def next_at(self) -> float | None:
        """See `calls.Clients`."""
        return None if self._miss_sent else self._hits.miss_at_s

    def ended(self, call: Call, now: float) -> None:
        """See `calls.Clients`."""
        self._cached = True
        self._over = self._over or call is self.miss

    def _hit(self) -> Call:
        return Call(self._prefix + pack_ids(drawn(self._rng, self._hits.own_tokens)), self._answer)
