"""Two hundred mixed requests, a third of them cancelled at random: afterwards nothing is held."""

from __future__ import annotations

import random
from collections.abc import Iterator

import anyio
import httpx
import jsonschema
import msgspec
import pytest

from tests.integration.harness import Running, nothing_held, phloem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["serve", "up"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with phloem(request.param, "--model", "tiny", env={"PHLOEM_KV_TOKENS": "2048"}) as started:
        yield started


def body(rng: random.Random) -> dict[str, object]:
    """One request of the mix."""
    shared = "The quick brown fox jumps over the lazy dog. " * rng.randrange(1, 5)
    request: dict[str, object] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": shared + str(rng.randrange(50))}],
        "max_tokens": rng.randrange(1, 60),
        "temperature": rng.choice([0, 0.8]),
        "seed": rng.randrange(1000),
        "stream": rng.random() < 0.5,
    }
    kind = rng.randrange(5)
    if kind == 0:
        request["n"] = 3
    elif kind == 1:
        request["stop"] = ["e", "qu"]
    elif kind == 2:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        request["max_tokens"] = 200
    elif kind == 3:
        request["logprobs"] = True
        request["top_logprobs"] = 3
    return request


async def one(client: httpx.AsyncClient, request: dict[str, object], patience: float, done: dict[str, int]) -> None:
    """Waits for the whole answer, at most ``patience`` seconds."""
    with anyio.move_on_after(patience):
        reply = await client.post("/v1/chat/completions", json=request)
        assert reply.status_code == 200, reply.text
        if "response_format" in request and not request["stream"]:
            choice = reply.json()["choices"][0]
            if choice["finish_reason"] == "stop":
                jsonschema.validate(msgspec.json.decode(choice["message"]["content"]), SCHEMA)
                done["valid"] += 1
    done["ended"] += 1


async def leaves_in_mid_stream(client: httpx.AsyncClient, request: dict[str, object], done: dict[str, int]) -> None:
    """Goes away after the first event, however fast the answers come."""
    asked = request | {"stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=asked) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                break
    done["left"] += 1


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_held_after_two_hundred_requests(running: Running, seed: int) -> None:
    rng = random.Random(seed)
    done = {"ended": 0, "left": 0, "valid": 0}

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=64)
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=120, limits=limits) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(200):
                if number % 6 == 0:
                    group.start_soon(leaves_in_mid_stream, client, body(rng), done)
                else:
                    patience = rng.uniform(0.001, 0.6) if number % 6 == 3 else 120
                    group.start_soon(one, client, body(rng), patience, done)
                await anyio.sleep(rng.uniform(0, 0.04))

    anyio.run(all_of_them)
    assert done["left"] == 34
    assert done["ended"] == 166
    assert done["valid"] > 3
    nothing_held(running)
