"""From a spec as the client gave it to one canonical source per meaning: what is cached, digested and compiled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from phloem_proto.messages import GrammarSpec

from .dialect import Dialect
from .limits import Limits, check_json_depth, check_regex, check_schema, check_text
from .refusal import INVALID, UNSUPPORTED, Refused, clip
from .schema import Located, subschemas


@dataclass(frozen=True, slots=True)
class Normalised:
    """A well-formed spec within the limits."""

    kind: str
    """``json_schema`` or ``regex``; ``json_object`` has become a schema."""
    source: str
    """Canonical text. Keys of a schema keep their order, which is the order of generation."""
    tree: Any = None
    """The parsed schema; None for a regex."""
    enum_values: int = 0


def normalise(spec: GrammarSpec, limits: Limits) -> Normalised:
    """Check a spec's form and size and bring it to canonical form.

    Raises:
        Refused: unknown kind, malformed source, or a limit is hit.
    """
    kind = KINDS.get(spec.kind)
    if kind is None:
        raise Refused(UNSUPPORTED, f"unknown grammar kind {clip(spec.kind, 40)!r}; known: {', '.join(KINDS)}")
    check_text(spec.source, limits)
    return kind(spec.source, limits)


def _json_object(source: str, limits: Limits) -> Normalised:
    if source:
        raise Refused(INVALID, "a json_object grammar takes no source")
    return _json_schema('{"type":"object"}', limits)


def _regex(source: str, limits: Limits) -> Normalised:
    _refuse_surrogates(source)
    check_regex(source, Dialect.PYTHON, limits)
    return Normalised("regex", source)


def _json_schema(source: str, limits: Limits) -> Normalised:
    check_json_depth(source, limits)
    tree = parse_json(source)
    if tree is True:
        tree = {}
    if not isinstance(tree, dict):
        raise Refused(INVALID, f"a schema must be an object or true, not {_name(tree)}", pointer="")
    size = check_schema(tree, limits)
    _check_dialect(tree)
    _check_metaschema(tree)
    _drop_no_ops(tree)
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    _refuse_surrogates(text)
    return Normalised("json_schema", text, tree, size.enum_values)


KINDS: dict[str, Callable[[str, Limits], Normalised]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
}
"""How each kind of spec is normalised. A new kind is one function here and one or more engines that take its result."""


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN, no infinities, no repeated keys. The nesting must have been bounded before.

    Raises:
        Refused: ``text`` is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_distinct)
    except ValueError as error:
        raise Refused(INVALID, f"the schema is not valid JSON: {clip(str(error), 200)}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits[:20]} is out of range")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: dict[str, Any] = {}
        twice = next(key for key, _ in pairs if key in seen or seen.update({key: None}) is not None)
        raise ValueError(f"key {clip(twice, 40)!r} occurs twice in one object")
    return built


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(
            INVALID, "the source contains half of a surrogate pair, which no UTF-8 output can match"
        ) from None


def _name(value: Any) -> str:
    return {list: "an array", str: "a string", type(None): "null", bool: "false"}.get(type(value), "a number")


_DIALECTS = frozenset(
    f"{scheme}://json-schema.org/{draft}/schema"
    for scheme in ("http", "https")
    for draft in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)


def _check_dialect(tree: dict[str, Any]) -> None:
    """Only published dialects: any other ``$schema`` would be fetched from where the client says."""
    for at in subschemas(tree):
        if isinstance(at.schema, dict) and "$schema" in at.schema:
            uri = at.schema["$schema"]
            if not isinstance(uri, str) or uri.removesuffix("#") not in _DIALECTS:
                raise Refused(
                    UNSUPPORTED,
                    f"unknown $schema {clip(str(uri), 80)!r}",
                    keyword="$schema",
                    pointer=at.child("$schema"),
                )
    if "x-guidance" in tree:
        raise Refused(
            UNSUPPORTED,
            "x-guidance would change how the schema is enforced",
            keyword="x-guidance",
            pointer="/x-guidance",
        )


def _check_metaschema(tree: dict[str, Any]) -> None:
    try:
        jsonschema_rs.meta.validate(tree)
    except jsonschema_rs.ValidationError as error:
        path = [str(part) for part in error.instance_path]
        keyword = path[-1] if path else ""
        message = f"not a valid JSON Schema: {clip(error.message, 200)}"
        raise Refused(INVALID, message, keyword=keyword, pointer=Located("", tree).child(*path)) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise Refused(INVALID, f"not a valid JSON Schema: {clip(str(error), 200)}", pointer="") from None


def _drop_no_ops(tree: dict[str, Any]) -> None:
    """Remove keywords that assert nothing but that engines refuse by name."""
    for at in subschemas(tree):
        if isinstance(at.schema, dict):
            for keyword, no_op in (("uniqueItems", False), ("unevaluatedProperties", True), ("unevaluatedItems", True)):
                if at.schema.get(keyword) is no_op:
                    del at.schema[keyword]
