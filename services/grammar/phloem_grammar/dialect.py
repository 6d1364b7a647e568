"""Patterns as their authors mean them, in the words of the engine's regex parser.

A ``pattern`` in a schema is ECMA-262 and a ``regex`` is Python's ``re`` over the whole text; the engine reads Rust's syntax. Where the three
mean different things the pattern is rewritten (shorthand classes, the dot, brackets within classes) or refused, never silently bent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from .refusal import INVALID, UNSUPPORTED, Refused


class Dialect(Enum):
    """Whose meaning a pattern has."""

    ECMA = auto()
    PYTHON = auto()


class Piece(NamedTuple):
    """A part of a pattern that is read as one."""

    text: str
    in_class: bool
    """Between ``[`` and ``]``, the brackets excluded."""


_PIECE = re.compile(
    r"\\(?:[pPuUx]\{[^}]*\}|[pP].|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)"
    r"|\{\d*,?\d*\}"
    r"|\(\?(?:P?<[^>=!]*>|[:=!>]|<[=!]|[^)]*?[:)])?"
    r"|\[\^?\]?"
    r"|.",
    re.DOTALL,
)
_IN_CLASS = re.compile(
    r"\\(?:[pPuUx]\{[^}]*\}|[pP].|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|&&|~~|--|.", re.DOTALL
)


def pieces(pattern: str) -> Iterator[Piece]:
    """Cut a pattern up. A class comes as its opening (``[``, ``[^``, with a leading literal ``]``), its members, and ``]``."""
    position, in_class = 0, False
    while position < len(pattern):
        match = (_IN_CLASS if in_class else _PIECE).match(pattern, position)
        assert match is not None, "the last alternative takes any character but a lone backslash"
        text = match.group()
        position = match.end()
        if in_class and text == "]":
            in_class = False
        yield Piece(text, in_class)
        in_class = in_class or (text.startswith("["))


_ECMA_SPACE = r"\t\n\x0b\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_PYTHON_SPACE = r"\t\n\x0b\f\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_PYTHON_WORD = r"\p{L}\p{N}_"
_REWRITES = {
    Dialect.ECMA: {r"\s": f"[{_ECMA_SPACE}]", r"\S": f"[^{_ECMA_SPACE}]", ".": r"[^\n\r\u2028\u2029]"},
    Dialect.PYTHON: {
        r"\s": f"[{_PYTHON_SPACE}]",
        r"\S": f"[^{_PYTHON_SPACE}]",
        r"\w": f"[{_PYTHON_WORD}]",
        r"\W": f"[^{_PYTHON_WORD}]",
    },
}
"""Nested classes are read as unions, so that the same words serve inside and outside a class."""
_CLASS_REWRITES = {"[": r"\[", "&&": r"\&\&", "~~": r"\~\~"}
"""Members of a class that Rust would read as operators."""


def rewrite(pattern: str, dialect: Dialect) -> str:
    """The pattern in Rust's words. It must have passed `check_dialect`."""
    table = _REWRITES[dialect]
    parts = []
    for piece in pieces(pattern):
        if piece.in_class:
            plain = "." if piece.text == "." else table.get(piece.text, piece.text)
            parts.append(_CLASS_REWRITES.get(piece.text, plain))
        else:
            parts.append(table.get(piece.text, piece.text))
    return "".join(parts)


_ECMA_LETTERS = "dDwWsStnrfvxupPbBk"
"""Letters that may follow a backslash in ECMA-262 (those that the engine refuses included: it says why)."""
_PYTHON_LETTERS = "dDwWsStnrfvxuUabBAZ"


def check_dialect(pattern: str, dialect: Dialect, pointer: str | None) -> None:
    """Refuse what Rust's parser would take for something else.

    Raises:
        Refused: with ``pointer``.
    """
    quantified = False
    for piece in pieces(pattern):
        text = piece.text
        problem = _problem(piece, dialect)
        if not piece.in_class and quantified and text == "+":
            problem = "possessive quantifiers are not supported"
        if problem is not None:
            raise Refused(UNSUPPORTED, f"the pattern is not supported: {problem}", keyword="pattern", pointer=pointer)
        quantified = not piece.in_class and (text in ("*", "+", "?") or _is_count(text))
    if _ends_in_backslash(pattern):
        raise Refused(INVALID, "the pattern is malformed: it ends in a backslash", keyword="pattern", pointer=pointer)


def _problem(piece: Piece, dialect: Dialect) -> str | None:
    text = piece.text
    letters = _ECMA_LETTERS if dialect is Dialect.ECMA else _PYTHON_LETTERS
    if len(text) > 1 and text[0] == "\\" and text[1].isalpha() and text[1] not in letters:
        return f"the escape {text[:2]}" if not (dialect is Dialect.PYTHON and text[1] in "pP") else None
    if piece.in_class:
        return "-- in a class" if text == "--" else None
    if dialect is Dialect.ECMA and text in ("[]", "[^]"):
        return "a class that starts with ]"
    if dialect is Dialect.ECMA and re.fullmatch(r"\(\?[^:=!<P].*", text):
        return "inline flags"
    if text.startswith("{,"):
        return "a count without a lower bound"
    return None


def _is_count(text: str) -> bool:
    return text.startswith("{") and len(text) > 1


def _ends_in_backslash(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1
