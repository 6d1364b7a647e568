"""Walking a JSON Schema: every place where a schema stands, with its JSON pointer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

ONE = (
    "items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
"""Keywords whose value is a schema."""
MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
"""Keywords whose value is a list of schemas (``items`` in older drafts)."""
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose value maps names to schemas."""


class Located(NamedTuple):
    """A schema and where it stands."""

    pointer: str
    schema: Any

    def child(self, *parts: str | int) -> str:
        """The pointer of something below this schema."""
        return self.pointer + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def subschemas(schema: Any) -> Iterator[Located]:
    """Every subschema in document order, the root first. Values that are no schema (a list, a number) are yielded as they are."""
    stack = [Located("", schema)]
    while stack:
        at = stack.pop()
        yield at
        if isinstance(at.schema, dict):
            stack.extend(reversed(list(_children(at))))


def _children(at: Located) -> Iterator[Located]:
    for keyword, value in at.schema.items():
        if keyword in NAMED and isinstance(value, dict):
            for name, sub in value.items():
                if not (keyword == "dependencies" and isinstance(sub, list)):
                    yield Located(at.child(keyword, name), sub)
        elif keyword in MANY and isinstance(value, list):
            for index, sub in enumerate(value):
                yield Located(at.child(keyword, index), sub)
        elif keyword in ONE:
            yield Located(at.child(keyword), value)


def types(schema: dict[str, Any]) -> tuple[str, ...]:
    """The schema's ``type`` as a tuple, () when absent."""
    value = schema.get("type")
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else ()


def find_keyword(schema: Any, keyword: str, mention: str = "") -> str | None:
    """Pointer of the first use of ``keyword`` whose value occurs in ``mention`` (an engine's message), or else of its first use."""
    first = None
    for at in subschemas(schema):
        if isinstance(at.schema, dict) and keyword in at.schema:
            value = at.schema[keyword]
            if isinstance(value, str) and value and value in mention:
                return at.child(keyword)
            first = at.child(keyword) if first is None else first
    return first
