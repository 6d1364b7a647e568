"""What a spec may cost before any engine sees it. Each limit, when hit, is named in the refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .dialect import Dialect, check_dialect, pieces
from .refusal import INVALID, Refused, over_limit
from .schema import Located, subschemas


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a spec. The figures are the published policy of a large provider, widened where our engines were measured to cope."""

    text_bytes: int = 256 * 1024
    """UTF-8 bytes of the source. Real schemas of that size compile in tens of milliseconds."""
    depth: int = 64
    """Nesting of brackets in a schema's text, and of groups in a pattern. Deeper ones overflow native stacks."""
    subschemas: int = 20_000
    """Places where a schema stands. Bounds the walks over it, which take some 10 us a place."""
    properties: int = 5_000
    """Declared properties, summed over the schema."""
    enum_values: int = 1_000
    """Enum values, summed, for any engine but llguidance, whose cost stays linear."""
    enum_values_llguidance: int = 10_000
    regex_bytes: int = 4 * 1024
    """UTF-8 bytes of a regex or of one ``pattern``."""
    repeat: int = 1_000
    """Largest count in ``{m,n}``."""
    verdict_bytes: int = 768 * 1024
    """UTF-8 bytes of what a worker gets: fits a broker's default payload of 1 MB with everything around it."""


@dataclass(frozen=True, slots=True)
class Size:
    """What was counted in a schema."""

    properties: int
    enum_values: int


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def check_text(text: str, limits: Limits) -> None:
    """Bound a source's size. Raises `Refused`."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.text_bytes:
        raise over_limit("text_bytes", f"{size} bytes", f"{limits.text_bytes}")


def check_json_depth(text: str, limits: Limits) -> None:
    """Bound the nesting of JSON text without parsing it, so that no parser recurses on hostile input. Raises `Refused`."""
    depth = 0
    for match in _TOKENS.finditer(text):
        char = text[match.start()]
        if char in "[{":
            depth += 1
            if depth > limits.depth:
                raise over_limit("depth", f"more than {limits.depth} levels", limits.depth)
        elif char in "]}":
            depth -= 1


def check_schema(schema: Any, limits: Limits) -> Size:
    """Count a parsed schema and check each pattern in it. Raises `Refused` naming the limit and, for a pattern, where it is."""
    properties = enum_values = 0
    for index, at in enumerate(subschemas(schema)):
        if index >= limits.subschemas:
            raise over_limit("subschemas", f"more than {limits.subschemas}", limits.subschemas)
        if not isinstance(at.schema, dict):
            continue
        declared = at.schema.get("properties")
        properties += len(declared) if isinstance(declared, dict) else 0
        values = at.schema.get("enum")
        enum_values += len(values) if isinstance(values, list) else 0
        _check_patterns(at, limits)
    if properties > limits.properties:
        raise over_limit("properties", properties, limits.properties)
    if enum_values > limits.enum_values_llguidance:
        raise over_limit("enum_values", enum_values, limits.enum_values_llguidance)
    return Size(properties, enum_values)


def _check_patterns(at: Located, limits: Limits) -> None:
    pattern = at.schema.get("pattern")
    if isinstance(pattern, str):
        check_regex(pattern, Dialect.ECMA, limits, pointer=at.child("pattern"))
    by_name = at.schema.get("patternProperties")
    if isinstance(by_name, dict):
        for name in by_name:
            check_regex(name, Dialect.ECMA, limits, pointer=at.child("patternProperties", name))


def check_regex(pattern: str, dialect: Dialect, limits: Limits, *, pointer: str | None = None) -> None:
    """Bound a pattern: its size, counted repeats and group depth; refuse NUL and what the engine would read in another sense.

    Raises:
        Refused: with ``pointer``.
    """
    size = len(pattern.encode("utf-8", "surrogatepass"))
    if size > limits.regex_bytes:
        raise over_limit("regex_bytes", f"{size} bytes", limits.regex_bytes, pointer=pointer)
    if "\0" in pattern:
        raise Refused(INVALID, "a pattern must not contain the NUL character", keyword="pattern", pointer=pointer)
    depth = 0
    for piece in pieces(pattern):
        if piece.in_class:
            continue
        depth += 1 if piece.text.startswith("(") else -1 if piece.text == ")" else 0
        if depth > limits.depth:
            raise over_limit("depth", f"more than {limits.depth} nested groups", limits.depth, pointer=pointer)
        for count in _COUNTS.findall(piece.text):
            if len(count) > 9 or int(count) > limits.repeat:
                raise over_limit("repeat", f"count {count[:20]}", limits.repeat, pointer=pointer)
    check_dialect(pattern, dialect, pointer)


_COUNTS = re.compile(r"(?<=^\{)\d+|(?<=,)\d+(?=\}$)")
"""The numbers of a piece that is a counted repeat."""
