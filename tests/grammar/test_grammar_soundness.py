"""Sound or refused: no text that an admitted grammar allows is invalid in an independent validator's eyes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from phloem_grammar.closing import validate
from phloem_grammar.engine import Compiled, Engine, Task
from phloem_grammar.formats import PATTERNS
from phloem_grammar.limits import Limits
from phloem_grammar.refusal import Refused
from phloem_grammar.route import route
from tests.grammar.conftest import HERE, shared_data
from tests.grammar.judging import PATIENT, regex, schema
from tests.grammar.languages import Language, Tokenizers
from tests.grammar.schemas import random_schema

LONG = pytest.mark.long


def admitted(value: Any, engine: Engine, name: str, tokenizers: Tokenizers) -> Language | None:
    """The language of a schema under one engine, None when it does not get there or is refused."""
    try:
        routed = route(schema(value), Limits())
    except Refused:
        return None
    if name not in routed.engines:
        return None
    outcome = engine.compile(Task(routed.spec.kind, routed.spec.source, PATIENT))
    return tokenizers.language(name, outcome.source) if isinstance(outcome, Compiled) else None


def draws(language: Language, count: int) -> list[str]:
    found = [language.draw(random.Random(number), 1 + 7 * number % 60) for number in range(count)]
    return [text.decode(errors="replace") for text in found if text is not None]


def sweep(engine: Engine, name: str, tokenizers: Tokenizers, seeds: range) -> int:
    """Random schemas, random texts of each; returns how many schemas were admitted."""
    count = 0
    for seed in seeds:
        value = random_schema(random.Random(seed))
        language = admitted(value, engine, name, tokenizers)
        if language is None:
            continue
        count += 1
        source = json.dumps(value)
        for text in draws(language, 20):
            assert validate("json_schema", source, text), f"seed {seed}: {source} allows {text!r}"
    return count


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 8_000), marks=LONG)])
def test_llguidance_random_schemas(seeds: range, llguidance: Engine, tokenizers: Tokenizers) -> None:
    assert sweep(llguidance, "llguidance", tokenizers, seeds) > len(seeds) // 3


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 8_000), marks=LONG)])
def test_xgrammar_random_schemas(seeds: range, xgrammar: Engine, tokenizers: Tokenizers) -> None:
    assert sweep(xgrammar, "xgrammar", tokenizers, seeds) > len(seeds) // 8


def suite(*, whole: bool) -> list[dict[str, Any]]:
    """Groups of JSON-Schema-Test-Suite, draft 2020-12, required part."""
    folder = shared_data("json-schema-test-suite/tests/draft2020-12") if whole else None
    if folder is None:
        named: dict[str, list[dict[str, Any]]] = json.loads((HERE / "data" / "suite_excerpt.json").read_text())
        return [group for groups in named.values() for group in groups]
    return [group for path in sorted(folder.glob("*.json")) for group in json.loads(path.read_text())]


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=LONG)])
def test_the_suites_invalid_instances(
    name: str, whole: bool, request: pytest.FixtureRequest, tokenizers: Tokenizers
) -> None:
    engine: Engine = request.getfixturevalue(name)
    invalid = valid = 0
    for group in suite(whole=whole):
        language = admitted(group["schema"], engine, name, tokenizers)
        for test in group["tests"] if language is not None else ():
            assert language is not None
            text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
            inside = language.contains(text)
            assert test["valid"] or not inside, (group["schema"], text)
            invalid += not test["valid"]
            valid += test["valid"] and inside
    assert min(valid, invalid) >= 10, "the test would say nothing"


@pytest.mark.parametrize("name", [*PATTERNS, "duration", "ipv4", "ipv6", "uri", "uuid"])
def test_formats_hold(name: str, llguidance: Engine, tokenizers: Tokenizers) -> None:
    value = {"type": "string", "format": name}
    language = admitted(value, llguidance, "llguidance", tokenizers)
    assert language is not None
    texts = draws(language, 60)
    assert len(texts) > 5
    assert [text for text in texts if not validate("json_schema", json.dumps(value), text)] == []


def test_dates_know_leap_years(llguidance: Engine, tokenizers: Tokenizers) -> None:
    language = admitted({"type": "string", "format": "date"}, llguidance, "llguidance", tokenizers)
    assert language is not None
    days = {
        "2024-02-29": True,
        "2000-02-29": True,
        "2023-02-29": False,
        "1900-02-29": False,
        "2023-04-31": False,
        "2023-12-31": True,
    }
    assert {day: language.contains(f'"{day}"') for day in days} == days


def test_a_key_has_one_spelling(llguidance: Engine, tokenizers: Tokenizers) -> None:
    """An escaped key must not dodge the schema of the property that it names."""
    value = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    language = admitted(value, llguidance, "llguidance", tokenizers)
    assert language is not None
    assert language.contains('{"a":"x","b":1}')
    assert not language.contains('{"\\u0061":1}')
    assert not language.contains('{"b":1,"a":1}')


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"\d{2}", ["12", "٣٤"], ["1", "123"]),
        (r"\w+", ["é_1"], ["", "a b"]),
        (r"a\sb", ["a b", "a\tb", "a\x1fb"], ["ab"]),
        (r"\S", ["x"], ["\x1f", "\u2003"]),
        (r"[\w.-]+@x", ["a.b@x"], ["@x"]),
        (r"[[:alpha:]]", ["[]", "a]"], ["b"]),
        (r"[a&&b]", ["a", "&", "b"], ["c"]),
        (r"^ab$|c", ["ab", "c"], ["abc"]),
        (r".", ["\r", "é"], ["\n"]),
    ],
)
def test_regexes_mean_what_python_means(
    pattern: str, inside: list[str], outside: list[str], llguidance: Engine, tokenizers: Tokenizers
) -> None:
    routed = route(regex(pattern), Limits())
    outcome = llguidance.compile(Task("regex", routed.spec.source, PATIENT))
    assert isinstance(outcome, Compiled)
    language = tokenizers.language("llguidance", outcome.source)
    for text in (*inside, *outside):
        assert validate("regex", pattern, text) == (text in inside), "the test itself is wrong"
        assert language.contains(text) == (text in inside), repr(text)
    for text in draws(language, 30):
        assert validate("regex", pattern, text), repr(text)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^\d$", ["3"], ["٣"]),
        (r"^\s$", ["\ufeff", " "], ["\x85"]),
        (r"^\S$", ["\x85"], ["\ufeff"]),
        (r"^.$", ["é"], ["\r", "\u2028"]),
        (r"b", ["abc"], ["ac"]),
    ],
)
def test_patterns_mean_what_the_standard_means(
    pattern: str, inside: list[str], outside: list[str], llguidance: Engine, tokenizers: Tokenizers
) -> None:
    language = admitted({"type": "string", "pattern": pattern}, llguidance, "llguidance", tokenizers)
    assert language is not None
    for text in (*inside, *outside):
        assert language.contains(json.dumps(text, ensure_ascii=False)) == (text in inside), repr(text)


def test_the_closing_check_itself() -> None:
    closed = json.dumps(
        {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "additionalProperties": False}
    )
    assert validate("json_schema", closed, '{"d":"2024-02-29"}')
    assert not validate("json_schema", closed, '{"d":"2023-02-29"}')
    assert not validate("json_schema", closed, '{"d":"2024-02-29"')
    assert validate("json_schema", '{"type":"number"}', "-1e999"), "a number, if not one that a double holds"
    assert validate("json_object", "", "{}")
    assert not validate("json_object", "", "[]")
    assert validate("regex", "a+", "aa")
    assert not validate("regex", "a+", "aab")
    for kind, source in (("regex", r"\p{L}"), ("ebnf", "")):
        with pytest.raises(ValueError, match=r"bad escape|unknown grammar kind"):
            validate(kind, source, "x")
