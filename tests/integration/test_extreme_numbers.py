"""Sampling numbers at the edges of what is allowed, against the real model: answered or refused by name, never a server error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.harness import Running, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NUMBERS = ["5e-324", "1e-45", "1e-38", "9.9e-6", "1e-5", "0.01", "0.9999999999", "1", "2", "1e400"]
NAMES = ["temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with phloem("serve", "--model", "smollm2") as started:
        yield started


def test_each_is_answered_or_refused_by_name(running: Running) -> None:
    def ask(name: str, number: str) -> httpx.Response:
        fields = '"temperature": 1, ' if name != "temperature" else '"top_p": 0.9, "repetition_penalty": 1.1, '
        body = f'{{"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 4, {fields}"{name}": {number}}}'
        return httpx.post(f"{running.url}/v1/completions", content=body, headers={"content-type": "application/json"}, timeout=120)  # fmt: skip

    cases = [(name, number) for name in NAMES for number in NUMBERS]
    with ThreadPoolExecutor(16) as pool:
        answers = dict(zip(cases, pool.map(lambda case: ask(*case), cases), strict=True))
    for (name, number), answer in answers.items():
        told = answer.json()
        if answer.status_code == 200:
            assert told["choices"][0]["finish_reason"] in ("length", "stop"), (name, number)
        else:
            assert (answer.status_code, told["error"]["param"]) == (400, name), (name, number, told)
    refused = {case for case, answer in answers.items() if answer.status_code != 200}
    assert ("repetition_penalty", "5e-324") in refused
    assert {("temperature", "5e-324"), ("top_p", "5e-324"), ("repetition_penalty", "0.01")}.isdisjoint(refused)
    nothing_held(running)
