"""Logprobs in the shapes of the three HTTP surfaces."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from phloem_proto.messages import TokenLogprob, TopLogprob

LEAST = -9999.0
"""Stands for minus infinity, which JSON can't hold (OpenAI writes the same)."""


def finite(value: float) -> float:
    """``value`` as JSON can hold it."""
    return value if math.isfinite(value) else LEAST


def piece(entry: TokenLogprob | TopLogprob) -> str:
    """A token's own text; half characters show as U+FFFD."""
    return entry.piece.decode("utf-8", "replace")


def chat(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """``choice.logprobs`` of a chat."""
    return {"content": [{**_chat(e), "top_logprobs": [_chat(t) for t in e.top]} for e in entries], "refusal": None}


def _chat(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": piece(entry), "logprob": finite(entry.logprob), "bytes": list(entry.piece)}


class CompletionLogprobs:
    """``choice.logprobs`` of a completion, block by block, with running text offsets.

    Args:
        top: whether alternatives were asked for.
    """

    def __init__(self, *, top: bool) -> None:
        self._top = top
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def block(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens. The first prompt token has no logprob: null."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.piece))
        return {
            "tokens": [piece(e) for e in entries],
            "token_logprobs": [None if math.isnan(e.logprob) else finite(e.logprob) for e in entries],
            "top_logprobs": [self._alternatives(e) for e in entries] if self._top else None,
            "text_offset": offsets,
        }

    @staticmethod
    def _alternatives(entry: TokenLogprob) -> dict[str, float] | None:
        if math.isnan(entry.logprob):
            return None
        shown: dict[str, float] = {}
        for top in entry.top:  # most likely first: of two tokens with the same text the likelier one stays
            shown.setdefault(piece(top), finite(top.logprob))
        return shown


def native(entries: Iterable[TokenLogprob], *, text: bool) -> list[list[Any]]:
    """``[logprob, id, text or null]`` per token."""
    return [_native(entry, text) for entry in entries]


def native_top(entries: Iterable[TokenLogprob], *, text: bool) -> list[list[list[Any]] | None]:
    """The alternatives of each token, in the same form; None where there are none."""
    return [[_native(top, text) for top in entry.top] or None for entry in entries]


def _native(entry: TokenLogprob | TopLogprob, text: bool) -> list[Any]:
    value = None if math.isnan(entry.logprob) else finite(entry.logprob)
    return [value, entry.id, piece(entry) if text else None]
