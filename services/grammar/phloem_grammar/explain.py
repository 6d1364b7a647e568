"""Engines' complaints in the client's terms: a code, the keyword, and where it stands in the schema."""

from __future__ import annotations

import json
import re
from typing import Any

from .engine import Rejected
from .refusal import INVALID, TOO_LARGE, UNSUPPORTED, Refused, clip
from .schema import find_keyword

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_REGEX_ERROR = re.compile(r"error: ([^\n|]+)|lookarounds not supported yet; (\w+)")
_BY_PHRASE = (
    (
        "oneOf constraints are not supported",
        "oneOf",
        UNSUPPORTED,
        "oneOf whose branches can't be told apart is not enforced",
    ),
    ("Unknown format", "format", UNSUPPORTED, "this format is not enforced"),
    ("is not present in a registry", "$ref", UNSUPPORTED, "references to other documents are not followed"),
    ("does not exist", "$ref", INVALID, "the reference points nowhere"),
    ("Unsatisfiable schema", "", INVALID, ""),
    ("nothing can satisfy it", "", INVALID, ""),
    ("it runs into a dead end", "", UNSUPPORTED, ""),
    ("enum array must not be empty", "enum", INVALID, "an empty enum allows nothing"),
)
"""(phrase in the complaint, keyword, code, our words or "" for the engine's own)."""


def explain(rejected: Rejected, kind: str, tree: Any) -> Refused:
    """The refusal for an engine's rejection of a ``kind`` whose parsed schema is ``tree`` (None for a regex)."""
    message = rejected.message
    if rejected.too_large:
        return Refused(TOO_LARGE, f"grammar over the limit mask_cost: {clip(message, 200)}", limit="mask_cost")
    if "invalid regex" in message:
        return _bad_pattern(message, kind, tree)
    unimplemented = _UNIMPLEMENTED.search(message)
    if unimplemented:
        return _unimplemented(unimplemented.group(1), tree)
    for phrase, keyword, code, ours in _BY_PHRASE:
        if phrase in message:
            pointer = find_keyword(tree, keyword, message) if keyword else None
            return Refused(code, ours or clip(message, 300), keyword=keyword, pointer=pointer)
    return Refused(UNSUPPORTED, f"the grammar engine refuses it: {clip(message, 300)}")


def _bad_pattern(message: str, kind: str, tree: Any) -> Refused:
    found = _REGEX_ERROR.search(message)
    reason = next((group for group in found.groups() if group), "") if found else ""
    supported = "look" not in message and "backreference" not in message
    pointer = (
        None
        if kind == "regex"
        else find_keyword(tree, "pattern", _quoted(message)) or find_keyword(tree, "patternProperties")
    )
    text = f"the pattern is {'malformed' if supported else 'not supported'}: {clip(reason or message, 200)}"
    return Refused(INVALID if supported else UNSUPPORTED, text, keyword="pattern", pointer=pointer)


def _quoted(message: str) -> str:
    """The pattern as the engine quotes it, its escapes undone, so that the schema's own text is found in it."""
    return message.replace("\\\\", "\\").replace("\\/", "/")


def _unimplemented(listed: str, tree: Any) -> Refused:
    try:
        keywords = [str(keyword) for keyword in json.loads(listed)]
    except ValueError:
        keywords = [listed]
    pointer = find_keyword(tree, keywords[0]) if keywords else None
    return Refused(UNSUPPORTED, f"{', '.join(keywords)} can't be enforced", keyword=keywords[0], pointer=pointer)
