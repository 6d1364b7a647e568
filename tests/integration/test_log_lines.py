"""An operator follows one request through the log lines of the services."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.integration.harness import eventually, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_a_request_is_found_in_the_lines_of_every_service_that_knows_it() -> None:
    with phloem("serve", "--model", "tiny", "--log-format", "json", "--log-level", "debug") as running:
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 2}}
        httpx.post(f"{running.url}/generate", json=body, headers={"x-request-id": "mine"}).raise_for_status()
        eventually(lambda: running.output().count("let go by its gateway") >= 2, 10, "never let go")
        lines = [json.loads(line) for line in running.output().splitlines() if line.startswith("{")]
    (ident,) = [line["inside"] for line in lines if line.get("request_id") == "mine" and "inside" in line]
    about = [(line["logger"], line["message"]) for line in lines if line.get("request_id") == ident]
    assert sorted(about) == [
        ("phloem.scheduler", "attempt 1 is taken"),
        ("phloem.scheduler", "let go by its gateway"),
        ("phloem.tokenizer", "attempt 1 is taken"),
        ("phloem.tokenizer", "let go by its gateway"),
    ]
