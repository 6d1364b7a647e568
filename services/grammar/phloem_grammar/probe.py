"""Trying masks before a grammar is let in: what compiles quickly can still make every mask slow, or stop a few tokens in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from .engine import MaskBudget, Rejected


class Walker(Protocol):
    """A matcher at its start."""

    def mask(self) -> bytes | None:
        """One bit per token that may come next (least significant first), ends cleared; None when the engine gave up."""
        ...

    def advance(self, token: int) -> bool:
        """Accept a token of the last mask. False when the engine gave up."""
        ...

    def accepting(self) -> bool:
        """Whether the text so far may end here."""
        ...

    def complaint(self) -> str:
        """Why the engine gave up."""
        ...


class Times:
    """CPU milliseconds of tried masks."""

    def __init__(self) -> None:
        self.first = 0.0
        self.slowest = 0.0


def try_masks(start: Callable[[], Walker], budget: MaskBudget) -> Times | Rejected:
    """Walk ``budget.walks`` times through random legal tokens (fixed seeds) and time each mask."""
    times = Times()
    for seed in range(budget.walks):
        refused = _walk(start(), random.Random(seed), budget, times, first=seed == 0)
        if refused is not None:
            return refused
    return times


def _walk(walker: Walker, rng: random.Random, budget: MaskBudget, times: Times, *, first: bool) -> Rejected | None:
    later: list[float] = []
    for step in range(budget.steps):
        began = time.thread_time()
        bits = walker.mask()
        spent = (time.thread_time() - began) * 1e3
        token = None if bits is None else _pick(bits, rng)
        if bits is None or (token is None and not walker.accepting()):
            return _dead_end(walker, step)
        if first and step == 0:
            times.first = spent
        elif step:
            later.append(spent)
        times.slowest = max(times.slowest, spent)
        if spent > budget.single_ms:
            return Rejected(
                f"the mask of output token {step + 1} takes {spent:.0f} ms, at most {budget.single_ms:.0f}",
                too_large=True,
            )
        if token is None:
            break
        if not walker.advance(token):
            return _dead_end(walker, step + 1)
    if later and sum(later) / len(later) > budget.mean_ms:
        return Rejected(
            f"masks take {sum(later) / len(later):.1f} ms on average, at most {budget.mean_ms:.0f}", too_large=True
        )
    return None


def _dead_end(walker: Walker, step: int) -> Rejected:
    complaint = walker.complaint()
    if step == 0 and not complaint:
        return Rejected("nothing can satisfy it")
    if complaint:
        return Rejected(f"the engine gives up at output token {step + 1}: {complaint}", too_large=True)
    return Rejected(f"it runs into a dead end at output token {step + 1}")


def clear_bits(bits: bytes, tokens: Iterable[int]) -> bytes:
    """``bits`` with those of ``tokens`` cleared."""
    cleared = bytearray(bits)
    for token in tokens:
        cleared[token >> 3] &= ~(1 << (token & 7)) & 0xFF
    return bytes(cleared)


_DRAWS = 64
"""Blind draws before a mask is searched: finds a token at once in wide masks, where a search would be slow."""


def _pick(bits: bytes, rng: random.Random) -> int | None:
    """A random token whose bit is set, or None when there is none."""
    for _ in range(_DRAWS if bits else 0):
        token = rng.randrange(8 * len(bits))
        if bits[token >> 3] >> (token & 7) & 1:
            return token
    filled = [index for index, byte in enumerate(bits) if byte]
    if not filled:
        return None
    index = filled[rng.randrange(len(filled))]
    return 8 * index + rng.choice([bit for bit in range(8) if bits[index] >> bit & 1])
