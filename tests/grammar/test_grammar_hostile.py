"""Grammars that crashed, hung, bloated or misled servers: each is refused with a reason, or enforced; none harms the service."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from phloem_grammar.runner import SandboxRunner
from phloem_grammar.sandbox_wire import JobLimits
from phloem_proto.messages import GrammarSpec, Verdict
from tests.grammar.conftest import HERE, shared_data
from tests.grammar.judging import judge, new_core
from tests.grammar.languages import Tokenizers

LIMITS = JobLimits(cpu_s=1.0, memory_bytes=512 << 20, wall_s=30.0)
MUST_BE_REFUSED = (
    "nul-regex", "nul-pattern", "ref-ring", "regex-huge-rep-literal", "bad-regex-bracket", "bad-type-name", "properties-is-list",
    "schema-is-list", "tuple-items-draft7", "regex-backreference", "empty-enum", "dangling-ref", "drop-not", "drop-contains",
    "oneof-overlap", "dependent-required", "length-empty", "surrogate-pattern",
)  # fmt: skip
"""Of those that a naive server gets wrong, the ones that no engine enforces. The others must hold their probes."""


def cases() -> list[dict[str, Any]]:
    path = shared_data("hostile_grammars.jsonl") or HERE / "data" / "hostile_excerpt.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] in ("json_schema", "regex")]


def spec(case: dict[str, Any]) -> GrammarSpec:
    source = case["spec"]
    return GrammarSpec(case["kind"], source if isinstance(source, str) else json.dumps(source))


async def judge_all(tokenizers: Tokenizers) -> dict[str, tuple[Verdict, float]]:
    """Verdict and seconds of each case, all through one runner whose fork servers must survive."""
    runner = SandboxRunner(tokenizers.source, LIMITS, priority="normal")
    core = new_core()
    found: dict[str, tuple[Verdict, float]] = {}
    async with anyio.create_task_group() as tasks:
        await tasks.start(runner.serve)
        for case in cases():
            began = time.perf_counter()
            found[case["id"]] = (await judge(core, runner, spec(case)), time.perf_counter() - began)
        assert all(server.restarts == 0 for server in runner.servers.values())
        tasks.cancel_scope.cancel()
    return found


@pytest.fixture(scope="module")
def verdicts(tokenizers: Tokenizers) -> dict[str, tuple[Verdict, float]]:
    return anyio.run(judge_all, tokenizers)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_refused_or_enforced(
    case: dict[str, Any], verdicts: dict[str, tuple[Verdict, float]], tokenizers: Tokenizers
) -> None:
    verdict, seconds = verdicts[case["id"]]
    assert seconds < 60, "bounded, the start of a second engine on a busy machine included"
    if verdict.grammar is None:
        assert case["expect"] != "ok"
        assert verdict.error is not None
        assert verdict.error.code in ("grammar_invalid", "grammar_unsupported", "grammar_too_large")
        assert verdict.error.message
        assert str(Path.home()) not in verdict.error.message
        return
    assert case["id"] not in MUST_BE_REFUSED
    language = tokenizers.language(verdict.grammar.engine, verdict.grammar.source)
    assert [text for text in case["accept"] if not language.contains(text)] == []
    assert [text for text in case["reject"] if language.contains(text)] == []


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ("drop-not", ["not", "/properties/n/not"]),
        ("drop-contains", ["contains", "/properties/xs/contains"]),
        ("oneof-overlap", ["oneOf", "/properties/n/oneOf"]),
        ("dependent-required", ["dependentRequired", "/dependentRequired"]),
        ("dangling-ref", ["points nowhere", "/properties/a/$ref"]),
        ("empty-enum", ["empty"]),
        ("regex-backreference", ["backreferences"]),
        ("bad-regex-bracket", ["unclosed character class"]),
        ("regex-huge-rep-literal", ["repeat"]),
        ("fill-nested-counts", ["mask_cost"]),
    ],
)
def test_refusals_say_what_and_where(
    identity: str, words: list[str], verdicts: dict[str, tuple[Verdict, float]]
) -> None:
    error = verdicts[identity][0].error
    assert error is not None
    assert [word for word in words if word not in error.message] == []
