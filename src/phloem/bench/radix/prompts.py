"""Prompts of three shapes, as packed uint32 bytes. A question is a request's own; everything before it is shared with others.

Lengths are in pages, so that branches fall on page boundaries whatever the page size, but for the ragged end of a question.
"""

from __future__ import annotations

import random
from typing import Protocol

from phloem_scheduler.node import TOKEN_BYTES

SYSTEM_PAGES = 32
SHOTS_PAGES = 32
DOCUMENT_PAGES = 8
QUESTION_PAGES = (4, 8)
MOST_BRANCHES = 16
"""Of a system prompt or of a group of examples: beyond this, more prompts mean more questions and documents."""
FLAT_PAGES = 4
STEP_PAGES = 2


class Prompts(Protocol):
    """Draws prompts. Each question is new, so two prompts of one maker never are equal."""

    def draw(self) -> bytes:
        """A prompt with a question of its own."""

    def long(self, tokens: int) -> bytes:
        """A prompt of exactly so many tokens."""


class Grouped:
    """System prompts, groups of few-shot examples below each, documents below those, questions below all: branches at four depths."""

    def __init__(self, count: int, page_size: int, rng: random.Random) -> None:
        self._rng = rng
        self._page = page_size * TOKEN_BYTES
        wide = max(1, min(MOST_BRANCHES, round(count**0.25)))
        documents = max(1, min(2 * MOST_BRANCHES, count // (wide * wide * 4)))
        self._shared: list[bytes] = []
        for _ in range(wide):
            system = rng.randbytes(SYSTEM_PAGES * self._page)
            for _ in range(wide):
                shots = system + rng.randbytes(SHOTS_PAGES * self._page)
                self._shared += [shots + rng.randbytes(DOCUMENT_PAGES * self._page) for _ in range(documents)]

    def draw(self) -> bytes:
        """See `Prompts`."""
        return self._rng.choice(self._shared) + question(self._rng, self._page)

    def long(self, tokens: int) -> bytes:
        """See `Prompts`."""
        return fill(self._rng.choice(self._shared), tokens, self._rng)


class Flat:
    """One short system prompt, and all questions right below it."""

    def __init__(self, page_size: int, rng: random.Random) -> None:
        self._rng = rng
        self._page = page_size * TOKEN_BYTES
        self._system = rng.randbytes(FLAT_PAGES * self._page)

    def draw(self) -> bytes:
        """See `Prompts`."""
        return self._system + question(self._rng, self._page)

    def long(self, tokens: int) -> bytes:
        """See `Prompts`."""
        return fill(self._system, tokens, self._rng)


class Chain:
    """One long text that questions branch off from after each two pages: the deepest node has ``depth`` nodes above it."""

    def __init__(self, depth: int, page_size: int, rng: random.Random) -> None:
        self._rng = rng
        self._page = page_size * TOKEN_BYTES
        self._text = rng.randbytes(depth * STEP_PAGES * self._page)
        self._depth = depth
        self._drawn = 0

    def draw(self) -> bytes:
        """See `Prompts`. The depths come in turn, deepest last."""
        self._drawn += 1
        depth = (self._drawn - 1) % self._depth + 1
        return self._text[: depth * STEP_PAGES * self._page] + question(self._rng, self._page)

    def long(self, tokens: int) -> bytes:
        """See `Prompts`."""
        return fill(self._text, tokens, self._rng)


def question(rng: random.Random, page: int) -> bytes:
    """Four to eight pages and a part of one."""
    return rng.randbytes(rng.randrange(QUESTION_PAGES[0] * page, QUESTION_PAGES[1] * page, TOKEN_BYTES))


def fill(shared: bytes, tokens: int, rng: random.Random) -> bytes:
    """``shared``, cut or made longer to ``tokens`` tokens."""
    return shared[: tokens * TOKEN_BYTES] + rng.randbytes(max(0, tokens * TOKEN_BYTES - len(shared)))
