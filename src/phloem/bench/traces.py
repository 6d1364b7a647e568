"""Recorded traffic as a workload: Mooncake's JSON lines (with prefix block hashes) and Azure's CSV (arrivals and lengths only).

Traces hold lengths, not texts. Prompts are made so that requests whose traces share block hashes share text.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from .words import Fit, text
from .workload import Item

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens of a Mooncake trace that one hash id stands for."""
KEPT_BLOCKS = 4096
"""Texts of blocks kept while a trace is made, so that a long trace of long prompts stays within some 10 MB; others are drawn anew."""


class TraceError(ValueError):
    """Raised when a trace file has a line that can't be read; names the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One recorded request."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of its prompt's blocks of `MOONCAKE_BLOCK_TOKENS` tokens, from the front; () = nothing known."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read(path: Path, count: int) -> list[Arrival]:
    """The first ``count`` requests of a trace, times counted from its first. ``.csv`` is Azure's format, anything else Mooncake's.

    Raises:
        TraceError: a line can't be read, or there is none.
        OSError: the file can't be opened.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        parsed = azure(lines) if path.suffix == ".csv" else mooncake(lines)
        arrivals = list(islice(parsed, count))
    if not arrivals:
        raise TraceError("the trace holds no request")
    start = arrivals[0].at_s
    return [Arrival(one.at_s - start, one.input_tokens, one.output_tokens, one.blocks) for one in arrivals]


def mooncake(lines: Iterable[str]) -> Iterator[Arrival]:
    """Arrivals from JSON lines with timestamp (ms), input_length, output_length and hash_ids."""
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number}: {error}") from error
        yield Arrival(one.timestamp / 1e3, one.input_length, one.output_length, tuple(one.hash_ids))


def azure(lines: Iterable[str]) -> Iterator[Arrival]:
    """Arrivals from CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens."""
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            moment = datetime.fromisoformat(row["TIMESTAMP"].strip())
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            yield Arrival(moment.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise TraceError(f"line {number}: {error}") from error


def workload(
    arrivals: Iterable[Arrival], fit: Fit, seed: int, *, scale: float, speedup: float, max_input: int, max_output: int
) -> list[Item]:
    """Items that follow a trace.

    Args:
        scale: lengths are multiplied by it (1/16 makes the Mooncake trace fit a small model), then cut to the two maxima.
        speedup: times are divided by it.
        max_input, max_output: longest prompt and answer, tokens.

    Raises:
        ValueError: scale or speedup is not positive.
    """
    if not (scale > 0 and speedup > 0):
        raise ValueError("scale and speedup must be positive")
    blocks = _Blocks(seed, fit.words_for(max(1, round(MOONCAKE_BLOCK_TOKENS * scale)), whole_prompt=False))
    items = []
    for index, one in enumerate(arrivals):
        words = fit.words_for(min(max_input, max(1, round(one.input_tokens * scale))), whole_prompt=True)
        output_tokens = min(max_output, max(1, round(one.output_tokens * scale)))
        items.append(Item(blocks.prompt(one.blocks, words, index), output_tokens, at_s=one.at_s / speedup))
    return items


class _Blocks:
    """Texts of hash blocks: equal ids give equal texts; what no block covers is drawn for that request alone."""

    def __init__(self, seed: int, words: int) -> None:
        self._seed = seed
        self._words = words
        self._kept: dict[int, list[str]] = {}

    def prompt(self, ids: tuple[int, ...], words: int, index: int) -> str:
        parts: list[str] = []
        for block in ids:
            if len(parts) >= words:
                break
            parts.extend(self._block(block))
        if len(parts) < words:
            own = random.Random(f"{self._seed}/request/{index}")
            parts.extend(text(own, words - len(parts)).split(" "))
        return " ".join(parts[:words])

    def _block(self, block: int) -> list[str]:
        known = self._kept.get(block)
        if known is None:
            known = text(random.Random(f"{self._seed}/block/{block}"), self._words).split(" ")
            if len(self._kept) < KEPT_BLOCKS:
                self._kept[block] = known
        return known
