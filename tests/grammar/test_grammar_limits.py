"""What is refused before any engine sees it: size, form and dialect, each with a reason that names the limit or the place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phloem_grammar.limits import Limits
from phloem_grammar.normalise import normalise
from phloem_grammar.refusal import INVALID, TOO_LARGE, UNSUPPORTED, Refused
from phloem_grammar.route import route
from phloem_proto.messages import GrammarSpec
from tests.grammar.judging import regex, schema


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def refused(spec: GrammarSpec) -> Refused:
    with pytest.raises(Refused) as caught:
        route(spec, Limits())
    assert caught.value.info().param == "grammar"
    return caught.value


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        (schema({"const": "a" * 262_144}), "text_bytes"),
        (schema({"const": "é" * 131_072}), "text_bytes"),
        (schema(nested(64)), "depth"),
        (schema("[" * 200_000), "depth"),
        (schema({"properties": {f"p{i}": {} for i in range(5_001)}}), "properties"),
        (schema({"enum": list(range(10_001))}), "enum_values"),
        (schema({"anyOf": [{}] * 20_001}), "subschemas"),
        (schema({"pattern": "a" * 4_097}), "regex_bytes"),
        (schema({"pattern": "a{1001}"}), "repeat"),
        (schema({"properties": {"x": {"patternProperties": {"^a{2,5000}$": {}}}}}), "repeat"),
        (regex("a" * 4_097), "regex_bytes"),
        (regex("a{3,1001}"), "repeat"),
        (regex("a{99999999999999999999}"), "repeat"),
        (regex("(" * 65 + "a" + ")" * 65), "depth"),
    ],
)
def test_every_limit_is_named(spec: GrammarSpec, limit: str) -> None:
    error = refused(spec)
    assert error.code == TOO_LARGE
    assert error.limit == limit
    assert limit in error.info().message


@pytest.mark.parametrize(
    "spec",
    [
        schema(nested(63)),
        schema({"properties": {f"p{i}": {} for i in range(5_000)}}),
        schema({"enum": list(range(10_000))}),
        regex("a{1,1000}"),
        regex("[{]{2}\\{9999\\}[0-9{2000}]"),
        regex("\\x{41}\\p{L}"),
    ],
)
def test_what_is_just_within_passes(spec: GrammarSpec) -> None:
    normalise(spec, Limits())


@pytest.mark.parametrize(
    ("value", "code", "keyword", "pointer"),
    [
        ({"type": "text"}, INVALID, "type", "/type"),
        ({"properties": [1, 2]}, INVALID, "properties", "/properties"),
        ({"properties": {"a/b": {"minLength": -1}}}, INVALID, "minLength", "/properties/a~1b/minLength"),
        ({"type": "array", "items": [{"type": "integer"}]}, INVALID, "items", "/items"),
        ({"pattern": "\0x"}, INVALID, "pattern", "/pattern"),
        ({"$schema": "http://127.0.0.1:9/schema"}, UNSUPPORTED, "$schema", "/$schema"),
        ({"x-guidance": {"lenient": True}}, UNSUPPORTED, "x-guidance", "/x-guidance"),
        ({"anyOf": [{}, {"pattern": "(?i)a"}]}, UNSUPPORTED, "pattern", "/anyOf/1/pattern"),
        ({"minProperties": 3, "required": ["a"]}, UNSUPPORTED, "minProperties", "/minProperties"),
        ({"properties": {"a\x01": {}}}, UNSUPPORTED, "properties", "/properties"),
        ({"items": {"const": {"k": ["\x02"]}}}, UNSUPPORTED, "const", "/items/const"),
    ],
)
def test_a_schema_is_refused_with_keyword_and_pointer(value: Any, code: str, keyword: str, pointer: str) -> None:
    error = refused(schema(value))
    assert (error.code, error.keyword, error.pointer) == (code, keyword, pointer)
    assert pointer in error.info().message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        "null",
        "false",
        '{"a":NaN}',
        '{"maximum":1e999}',
        '{"type":"string","type":"null"}',
        '"\\ud800"',
    ],
)
def test_text_that_is_no_schema_is_invalid(text: str) -> None:
    assert refused(schema(text)).code == INVALID


def test_half_a_surrogate_pair_is_invalid() -> None:
    assert refused(schema('{"const":"\\ud800"}')).code == INVALID
    assert refused(regex("\ud800")).code == INVALID


def test_unknown_kind_names_the_known_ones() -> None:
    error = refused(GrammarSpec("ebnf", "root ::= a"))
    assert error.code == UNSUPPORTED
    assert "json_schema" in error.message


def test_canonical_text_keeps_the_order_of_keys_and_drops_spelling() -> None:
    first = normalise(schema('{ "properties": {"b": {}, "a": {"const": 1.50}}, "type":"object" }'), Limits())
    assert first.source == '{"properties":{"b":{},"a":{"const":1.5}},"type":"object"}'
    second = normalise(schema('{"properties":{"b":{},"a":{"const":1.5}},"type":"object"}'), Limits())
    assert second.source == first.source
    swapped = normalise(schema({"properties": {"a": {"const": 1.5}, "b": {}}, "type": "object"}), Limits())
    assert swapped.source != first.source, "the order of keys is the order of generation"


def test_json_object_and_true_are_schemas() -> None:
    assert normalise(GrammarSpec("json_object", ""), Limits()).source == '{"type":"object"}'
    assert normalise(schema("true"), Limits()).source == "{}"
    assert refused(GrammarSpec("json_object", "{}")).code == INVALID


def test_keywords_that_assert_nothing_are_dropped() -> None:
    kept = normalise(
        schema({"type": "array", "uniqueItems": False, "items": {"unevaluatedProperties": True}}), Limits()
    )
    assert json.loads(kept.source) == {"type": "array", "items": {}}
    assert "uniqueItems" in normalise(schema({"uniqueItems": True}), Limits()).source


@pytest.mark.parametrize("pattern", ["a++", "a{1,2}+", "(?i)a", "\\a", "[]a]", "[a--b]", "a{,3}", "a\\"])
def test_patterns_that_another_dialect_reads_otherwise_are_refused(pattern: str) -> None:
    assert refused(schema({"type": "string", "pattern": pattern})).keyword == "pattern"


def test_messages_are_short_and_on_one_line() -> None:
    message = refused(schema({"type": "x\n" * 5_000})).info().message
    assert len(message) <= 500
    assert message.isprintable()
