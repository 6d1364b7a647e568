"""The bytes of each token: what detokenising, stop strings and logprob pieces are made of.

Working on bytes instead of the library's `decode` makes released text a pure function of the ids and keeps it linear: a
token's bytes never depend on its neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem_model.byte_level import byte_alphabet
from phloem_model.errors import TokenizerUnsupported

Json = dict[str, Any]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PIECEWISE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes by token id. Ids that the tokenizer does not know (rows that pad a model's matrix) have none."""

    pieces: Sequence[bytes]
    special: frozenset[int]  # hidden by skip_special_tokens
    strip_space: bool  # a whole text loses one leading space, which encoding put there

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, b"" for an id without one. A piece may be part of a character."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def text(self, ids: Iterable[int], skip_special_tokens: bool) -> str:
        """A whole text: bytes joined, what is not UTF-8 replaced by U+FFFD."""
        hidden = self.special if skip_special_tokens else frozenset()
        text = b"".join(self.piece(token) for token in ids if token not in hidden).decode("utf-8", "replace")
        return text[1:] if self.strip_space and text.startswith(" ") else text


def load_vocabulary(tokenizer_json: Path) -> Vocabulary:
    """Read the vocabulary of a tokenizer.json. Raises TokenizerUnsupported for a decoder that is not known here."""
    return vocabulary(json.loads(tokenizer_json.read_text(encoding="utf-8")))


def vocabulary(tokenizer: Json) -> Vocabulary:
    """As `load_vocabulary`, from the parsed JSON."""
    steps = _steps(tokenizer.get("decoder"))
    kinds = [step["type"] for step in steps]
    added = {token["id"]: token for token in tokenizer.get("added_tokens") or ()}
    texts = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    if "ByteLevel" in kinds and len(kinds) == 1:
        pieces = _byte_level_pieces(texts)
    elif kinds and set(kinds) <= _PIECEWISE:
        pieces = _marked_pieces(texts, steps)
    else:
        raise TokenizerUnsupported(f"the tokenizer's decoder {kinds or None} is not known")
    pieces.update({index: token["content"].encode() for index, token in added.items()})
    return Vocabulary(
        pieces=[pieces.get(index, b"") for index in range(max(pieces, default=-1) + 1)],
        special=frozenset(index for index, token in added.items() if token.get("special")),
        strip_space=any(_strips(step) for step in steps),
    )


def _steps(decoder: Json | None) -> list[Json]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _strips(step: Json) -> bool:
    if step["type"] == "Strip":
        return bool(step.get("content") == " " and step.get("start", 0) >= 1)
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")


def _byte_level_pieces(texts: dict[int, str]) -> dict[int, bytes]:
    """Each character stands for a byte; a token with any other character stands for itself."""
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    pieces: dict[int, bytes] = {}
    for index, text in texts.items():
        try:
            pieces[index] = bytes([byte_of[character] for character in text])
        except KeyError:
            pieces[index] = text.encode()
    return pieces


def _marked_pieces(texts: dict[int, str], steps: list[Json]) -> dict[int, bytes]:
    """SentencePiece: a mark stands for a space, and <0xNN> for a byte."""
    falls_back = any(step["type"] == "ByteFallback" for step in steps)
    replacements = [
        (step["replacement"], " ") if step["type"] == "Metaspace" else (step["pattern"]["String"], step["content"])
        for step in steps
        if step["type"] in ("Metaspace", "Replace")
    ]
    pieces: dict[int, bytes] = {}
    for index, text in texts.items():
        byte = _BYTE_TOKEN.fullmatch(text) if falls_back else None
        if byte is not None:
            pieces[index] = bytes([int(byte[1], 16)])
            continue
        for old, new in replacements:
            text = text.replace(old, new)
        pieces[index] = text.encode()
    return pieces
