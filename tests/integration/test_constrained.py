"""Twenty schemas and ten patterns at once on the default model, each answer judged by a validator that took no part in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.integration.harness import Running, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("name", {"type": "string", "maxLength": 16}),
    ("age", {"type": "integer", "minimum": 0, "maximum": 130}),
    ("ok", {"type": "boolean"}),
    ("kind", {"enum": ["cat", "dog", "bird"]}),
    ("tags", {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}),
    ("score", {"type": "number", "minimum": 0, "maximum": 1}),
    ("none", {"type": "null"}),
    ("code", {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"}),
    ("day", {"type": "string", "format": "date"}),
    ("inner", {"type": "object", "properties": {"x": {"const": 3}}, "required": ["x"], "additionalProperties": False}),
]


def schema(index: int) -> dict[str, Any]:
    """One of twenty different schemas: two neighbouring fields, all required in the even ones."""
    chosen = dict([FIELDS[index % 10], FIELDS[(index + 1 + index // 10) % 10]])
    required = list(chosen) if index % 2 == 0 else [next(iter(chosen))]
    return {
        "type": "object",
        "properties": chosen,
        "required": required,
        "additionalProperties": False,
        "title": f"t{index}",
    }


PATTERNS = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(yes|no|maybe)",
    r"\+?[0-9]{3,9}",
    r"[a-z]{2,8}@[a-z]{2,8}\.(com|org)",
    r"#[0-9a-f]{6}",
    r"(red|green|blue)(, (red|green|blue)){0,2}",
    r"v[0-9]+\.[0-9]+\.[0-9]+",
    r"[A-Z][a-z]{1,10} [A-Z][a-z]{1,10}",
    r"(([01][0-9]|2[0-3]):[0-5][0-9])",
    r"-?[1-9][0-9]{0,3}",
]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with phloem("serve", "--model", "smollm2") as started:
        yield started


def chat(running: Running, content: str, **body: Any) -> dict[str, Any]:
    reply = httpx.post(
        f"{running.url}/v1/chat/completions",
        json={"model": "smollm2", "messages": [{"role": "user", "content": content}], "max_tokens": 120, **body},
        timeout=120,
    )
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def json_answer(running: Running, index: int) -> bool:
    spec = schema(index)
    choice = chat(
        running,
        f"Describe item {index} as JSON.",
        response_format={"type": "json_schema", "json_schema": {"name": "item", "schema": spec}},
        temperature=0.7,
        seed=index,
    )
    if choice["finish_reason"] == "length":
        return False
    jsonschema_rs.validator_for(spec, validate_formats=True).validate(json.loads(choice["message"]["content"]))
    return True


def regex_answer(running: Running, pattern: str) -> bool:
    choice = chat(running, "Answer in the given form.", regex=pattern, temperature=0.7, seed=3)
    if choice["finish_reason"] == "length":
        return False
    assert re.fullmatch(pattern, choice["message"]["content"])
    return True


def test_thirty_grammars_at_once_all_hold(running: Running) -> None:
    with ThreadPoolExecutor(30) as pool:
        schemas = [pool.submit(json_answer, running, index) for index in range(20)]
        patterns = [pool.submit(regex_answer, running, pattern) for pattern in PATTERNS]
        finished = [future.result() for future in schemas], [future.result() for future in patterns]
    assert sum(finished[0]) >= 18
    assert sum(finished[1]) >= 9


def test_json_object_mode_gives_an_object(running: Running) -> None:
    choice = chat(running, "Give me a small JSON object.", response_format={"type": "json_object"}, temperature=0)
    assert choice["finish_reason"] in ("stop", "length")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"regex": "a{0,100000}"}, "repeat"),
        ({"regex": "("}, "unclosed"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
            "type",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}},
                }
            },
            "not",
        ),
    ],
)
def test_a_grammar_that_cannot_be_kept_is_refused_by_name(running: Running, body: dict[str, Any], word: str) -> None:
    reply = httpx.post(
        f"{running.url}/v1/chat/completions",
        json={"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], **body},
        timeout=30,
    )
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert word in error["message"]
    assert error["param"] == next(iter(body))
