"""Workloads as plain data: what to send, how long the answers are, and when. Everything is drawn from a seed.

Lengths are in tokens and become words through a `Fit`; equal arguments give equal workloads on every machine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .schemas import SCHEMAS
from .words import Fit, text


@dataclass(frozen=True, slots=True)
class Item:
    """One request to send."""

    user: str
    """The user's message; for completions, the rest of the prompt after ``system``."""
    output_tokens: int
    """Sent as max_tokens, >= 1."""
    system: str = ""
    """Text shared by a group, in front; "" = none."""
    at_s: float | None = None
    """When to send, in seconds from the start of the run; None = as soon as a place is free."""
    schema: dict[str, Any] | None = None
    """JSON schema the answer must follow."""
    group: int = 0
    """Items of one group share ``system``, and the schema if they have one."""

    @property
    def prompt(self) -> str:
        """The prompt of a plain completion."""
        return f"{self.system}\n\n{self.user}" if self.system else self.user


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and answer lengths, each drawn evenly from [range_ratio * most, most]."""

    input_tokens: int
    output_tokens: int
    range_ratio: float = 1.0
    """In (0, 1]; 1 = always the given length."""

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """One pair (input tokens, output tokens)."""
        return _between(rng, self.input_tokens, self.range_ratio), _between(rng, self.output_tokens, self.range_ratio)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Groups of requests that begin alike: ``groups * per_group`` requests in all."""

    groups: int
    per_group: int
    prefix_tokens: int
    question_tokens: int
    output_tokens: int
    range_ratio: float = 1.0
    """Of question and answer, as in `Lengths`; prefixes always have their full length."""
    ordered: bool = False
    """Group after group; otherwise shuffled, as from independent users."""


def unique(count: int, lengths: Lengths, fit: Fit, seed: int) -> list[Item]:
    """``count`` prompts that share nothing."""
    rng = random.Random(seed)
    items = []
    for _ in range(count):
        input_tokens, output_tokens = lengths.draw(rng)
        items.append(Item(text(rng, fit.words_for(input_tokens, whole_prompt=True)), output_tokens))
    return items


def single(count: int, lengths: Lengths, fit: Fit, seed: int) -> list[Item]:
    """One prompt, ``count`` times: what a cache makes of the very same request."""
    return unique(1, lengths, fit, seed) * count


def shared_prefix(spec: SharedPrefix, fit: Fit, seed: int) -> list[Item]:
    """Groups that share a long prefix, each request with a question of its own behind it."""
    rng = random.Random(seed)
    items = []
    for group in range(spec.groups):
        prefix = text(rng, fit.words_for(spec.prefix_tokens, whole_prompt=False))
        for _ in range(spec.per_group):
            question = text(
                rng, fit.words_for(_between(rng, spec.question_tokens, spec.range_ratio), whole_prompt=False)
            )
            items.append(
                Item(question, _between(rng, spec.output_tokens, spec.range_ratio), system=prefix, group=group)
            )
    if not spec.ordered:
        rng.shuffle(items)
    return items


def json_answers(count: int, output_tokens: int, seed: int) -> list[Item]:
    """Questions whose answers must follow a JSON schema, going through the built-in schemas in turn."""
    rng = random.Random(seed)
    items = []
    for index, (name, schema) in zip(range(count), itertools.cycle(SCHEMAS.items()), strict=False):
        question = f"Invent a {name} that has to do with {text(rng, 3)}. Answer in JSON."
        items.append(Item(question, output_tokens, schema=schema, group=index % len(SCHEMAS)))
    return items


def poisson(items: Sequence[Item], rate: float, seed: int) -> list[Item]:
    """``items`` with arrival times of a Poisson process of ``rate`` requests per second; the first is sent at once.

    Raises:
        ValueError: the rate is not positive.
    """
    if not rate > 0:
        raise ValueError("the request rate must be positive")
    rng = random.Random(seed)
    gaps = [0.0, *(rng.expovariate(rate) for _ in items[1:])]
    return [replace(item, at_s=at) for item, at in zip(items, itertools.accumulate(gaps), strict=False)]


def _between(rng: random.Random, most: int, ratio: float) -> int:
    return rng.randint(max(1, round(most * ratio)), most)
