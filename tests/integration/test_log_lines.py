"""An operator follows one request through the log lines of the services."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integration.harness import Running, eventually, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def about(running: Running, sampling: dict[str, Any]) -> list[tuple[str, str]]:
    """Logger and text of the lines about a request, found by the client's id."""
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 2, **sampling}}
    httpx.post(f"{running.url}/generate", json=body, headers={"x-request-id": "mine"}).raise_for_status()
    eventually(lambda: running.output().count("let go by its gateway") >= 2, 10, "never let go")
    lines = [json.loads(line) for line in running.output().splitlines() if line.startswith("{")]
    (ident,) = [line["inside"] for line in lines if line.get("request_id") == "mine" and "inside" in line]
    return sorted((line["logger"], line["message"]) for line in lines if line.get("request_id") == ident)


EVERYWHERE = [
    ("phloem.scheduler", "attempt 1 is taken"),
    ("phloem.scheduler", "let go by its gateway"),
    ("phloem.tokenizer", "attempt 1 is taken"),
    ("phloem.tokenizer", "let go by its gateway"),
    ("phloem.worker", "takes slot 0 with plan 1"),
]


@pytest.mark.parametrize(
    ("sampling", "more"), [({}, []), ({"regex": "[ab]+"}, [("phloem.grammar", "its grammar goes to llguidance")])]
)
def test_a_request_is_found_in_the_lines_of_every_service_that_knows_it(
    sampling: dict[str, Any], more: list[tuple[str, str]]
) -> None:
    with phloem("serve", "--model", "tiny", "--log-format", "json", "--log-level", "debug") as running:
        assert about(running, sampling) == sorted(EVERYWHERE + more)
