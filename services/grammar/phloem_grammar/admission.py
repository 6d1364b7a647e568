"""Which schemas xgrammar enforces completely.

xgrammar compiles nearly everything and ignores what it can't express, so that a schema may go to it only when each keyword in it is on a
list of what was measured to hold (JSON-Schema-Test-Suite, and probes of its language). The list is short on purpose: llguidance takes the
rest. Left out because they leak: everything beside ``$ref``/``anyOf``/``oneOf``/``const``/``enum``; ``pattern`` and ``format``; string
lengths (halves of surrogate pairs are counted, and may be written as bytes that are no UTF-8); bounds on ``number``; objects that declare
properties and are open (an additional key may repeat or escape a declared one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .refusal import UNSUPPORTED, Refused
from .schema import Located, subschemas, types

_ANNOTATIONS = frozenset(
    (
        "$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "example", "deprecated",
        "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    )
)  # fmt: skip
_LEADS = ("$ref", "const", "enum", "anyOf", "oneOf")
"""Keywords that xgrammar enforces only when they stand alone."""
_BY_TYPE = {
    "string": frozenset[str](),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset[str](),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
}
Finding = tuple[str, str]
"""A keyword and why it is not proved."""


def xgrammar_gap(tree: Any) -> Refused | None:
    """The first place of a schema that xgrammar is not proved to enforce, or None when it may be compiled under a strict promise."""
    places = list(subschemas(tree))
    pointers = {at.pointer for at in places}
    for at in places:
        for keyword, reason in _findings(at, pointers):
            message = f"no engine is proved to enforce {keyword or 'this'}: {reason}"
            return Refused(UNSUPPORTED, message, keyword=keyword, pointer=at.child(keyword) if keyword else at.pointer)
    return None


def _findings(at: Located, pointers: set[str]) -> Iterator[Finding]:
    if at.schema is True or (at.schema is False and at.pointer.endswith("/additionalProperties")):
        return
    if not isinstance(at.schema, dict):
        yield "", "a schema that nothing satisfies"
        return
    asserted = [
        keyword for keyword in at.schema if keyword not in _ANNOTATIONS and not (keyword == "$id" and not at.pointer)
    ]
    lead = next((keyword for keyword in _LEADS if keyword in asserted), None)
    if lead is not None:
        yield from _lead_findings(at, lead, asserted, pointers)
    elif asserted:
        yield from _typed_findings(at, asserted)


def _lead_findings(at: Located, lead: str, asserted: list[str], pointers: set[str]) -> Iterator[Finding]:
    value = at.schema[lead]
    beside = [keyword for keyword in asserted if keyword != lead]
    if beside and not (lead in ("const", "enum") and beside == ["type"]):
        yield beside[0], f"it stands beside {lead}"
    if lead in ("const", "enum") and "type" in at.schema:
        values = value if lead == "enum" else [value]
        if not all(any(_is(item, name) for name in types(at.schema)) for item in values):
            yield lead, "a value is outside the type"
    if lead == "$ref" and not (isinstance(value, str) and value.startswith("#") and value[1:] in pointers):
        yield lead, "only references to a subschema of this document are"
    if lead == "oneOf" and not _disjoint(value):
        yield lead, "its branches are not of distinct types"


def _typed_findings(at: Located, asserted: list[str]) -> Iterator[Finding]:
    names = types(at.schema)
    if not names:
        yield asserted[0], "the schema has no type"
        return
    allowed = {"type"}.union(*(_BY_TYPE.get(name, frozenset()) for name in names))
    for keyword in asserted:
        if keyword not in allowed:
            yield keyword, f"for type {' or '.join(names)} it is not"
    if "object" in names:
        yield from _object_findings(at.schema)


def _object_findings(schema: dict[str, Any]) -> Iterator[Finding]:
    declared = schema.get("properties", {})
    if declared and schema.get("additionalProperties") is not False:
        yield "properties", "with additional properties allowed it is not"
    if any(name not in declared for name in schema.get("required", [])):
        yield "required", "it names an undeclared property"
    for keyword in ("minProperties", "maxProperties"):
        if keyword in schema and declared:
            yield keyword, "beside properties it is not"
    if schema.get("minProperties", 0) > 1:
        yield "minProperties", "repeated keys count"


_PYTHON_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def _is(value: Any, name: str) -> bool:
    return name in _PYTHON_TYPES and _PYTHON_TYPES[name](value)


def _disjoint(branches: Any) -> bool:
    """Whether each branch names types of its own (integers are numbers)."""
    seen: list[str] = []
    for branch in branches if isinstance(branches, list) else []:
        names = types(branch) if isinstance(branch, dict) else ()
        kinds = ["number" if name == "integer" else name for name in names]
        if not kinds or any(kind in seen for kind in kinds):
            return False
        seen.extend(kinds)
    return bool(seen)
