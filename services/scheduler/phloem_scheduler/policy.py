"""In what order waiting choices are picked: request priority first, then what the policy says.

A policy is a key for each choice, smallest first, fixed while it waits, and for longest-prefix match a credit for what is cached. The credit
is time: a choice whose cached prefix has m tokens is treated as if its request had arrived up to `ageing_s` earlier. So nobody is ever
overtaken by a request that arrived more than `ageing_s` after it, and the order of any two choices never changes with the clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .requests import Choice

# (-priority, value, number of the request, child): the last two make keys differ.
Key = tuple[float, ...]

# Cached tokens that earn half of the credit: a system prompt counts, and a longer match still counts more.
HALF_CREDIT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Policy:
    """One order. value: what is compared between choices of one priority; by_prefix: whether cached tokens count too."""

    name: str
    about: str
    value: Callable[[Choice], float]
    by_prefix: bool = False

    def key(self, choice: Choice) -> Key:
        """choice's place."""
        request = choice.request
        return (-request.priority, self.value(choice), request.number, choice.child)


def arrival(choice: Choice) -> float:
    """When the client's request arrived; a retracted or replayed one thus keeps its place."""
    return choice.request.arrival


def longest_output(choice: Choice) -> float:
    """Most output still to come first."""
    return len(choice.output) - choice.request.params.max_tokens


def lot(choice: Choice) -> float:
    """A number drawn once for a choice, the same whenever it waits."""
    digest = hashlib.blake2b(choice.request.rid + choice.child.to_bytes(4, "little"), digest_size=6).digest()
    return float(int.from_bytes(digest, "little"))


def credit(tokens: int, ageing_s: float) -> float:
    """Seconds that a cached prefix of so many tokens is worth: grows with every token, never reaches ageing_s."""
    return ageing_s * tokens / (tokens + HALF_CREDIT_TOKENS)


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("lpm", "longest prefix match first, with ageing", arrival, by_prefix=True),
        Policy("fcfs", "first come, first served", arrival),
        Policy("dfs-weight", "along the tree, where most choices wait first", arrival),
        Policy("lof", "longest output first", longest_output),
        Policy("random", "by lot", lot),
        Policy("priority", "request priority, then first come: what the others do among equals", arrival),
    )
}
