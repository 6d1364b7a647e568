"""Numbers at the edges of floating point: each either works, and reaches the scheduler within its promised range, or is refused by name."""

from __future__ import annotations

import json
import struct
from typing import Any

import grpc
import pytest

from .backend import MODEL
from .grpc_client import Client, trailing
from .world import World

pytestmark = pytest.mark.anyio

RANGES = {
    "temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0), "repetition_penalty": (0.01, 2.0),
}  # fmt: skip
TINY = ["0", "-0.0", "5e-324", "-5e-324", "2.3e-308", "1e-45", "1.2e-38", "1e-9", "-1e-9", "0.009999", "0.01"]
HUGE = ["1", "1.0000001", "2", "2.0000001", "3.5e38", "1.7e308", "1e400", "-1e400", "9" * 400]
WHOLE = [
    "0",
    "-0",
    "-1",
    "2147483647",
    "2147483648",
    "-2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1e400",
]
COUNTS = ["max_tokens", "min_tokens", "top_k", "n", "seed", "priority"]


@pytest.mark.parametrize("number", TINY + HUGE)
@pytest.mark.parametrize("name", RANGES)
async def test_over_http(shared: World, name: str, number: str) -> None:
    await over_http(shared, name, number)
    for order in shared.backend.scheduler.opened:
        assert RANGES[name][0] <= getattr(order.params, name) <= RANGES[name][1]


@pytest.mark.parametrize("number", WHOLE)
@pytest.mark.parametrize("name", COUNTS)
async def test_whole_numbers_over_http(shared: World, name: str, number: str) -> None:
    await over_http(shared, name, number)


async def over_http(shared: World, name: str, number: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": "hi"}).removesuffix("}") + f', "{name}": {number}}}'
    async with shared.client() as client:
        answer = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    if answer.status_code != 200:
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == name or error["code"] == "invalid_json"
        assert shared.backend.scheduler.opened == []


@pytest.mark.parametrize("number", TINY + HUGE)
@pytest.mark.parametrize("name", RANGES)
async def test_over_grpc(shared: World, client: Client, name: str, number: str) -> None:
    request = client.message("GenerateRequest", text="hi")
    value = float(number)
    if abs(value) < 3.4e38:
        value = struct.unpack("f", struct.pack("f", value))[0]
    setattr(request.sampling, name, value)
    refusal: grpc.aio.AioRpcError | None = None
    try:
        await client.generate(request)
    except grpc.aio.AioRpcError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert trailing(refusal)["phloem-error-param"] == f"sampling.{name}"
        assert shared.backend.scheduler.opened == []
    for order in shared.backend.scheduler.opened:
        assert RANGES[name][0] <= getattr(order.params, name) <= RANGES[name][1]


@pytest.mark.parametrize("number", ["5e-324", "0.0099"])
async def test_the_least_repetition_penalty_is_named(shared: World, number: str) -> None:
    answer = await shared.post("/v1/completions", {"model": MODEL, "prompt": "hi", "repetition_penalty": float(number)})
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "repetition_penalty")
    assert "between 0.01 and 2" in error["message"]


async def test_the_least_repetition_penalty_works_on_both_edges(shared: World, client: Client) -> None:
    least = {"model": MODEL, "prompt": "hi", "repetition_penalty": 0.01}
    assert (await shared.post("/v1/completions", least)).status_code == 200
    request = client.message("GenerateRequest", text="hi")
    request.sampling.repetition_penalty = 0.01
    await client.generate(request)
    assert [order.params.repetition_penalty for order in shared.backend.scheduler.opened] == [0.01, 0.01]


@pytest.mark.parametrize(
    ("path", "number"),
    [(f"/flush_cache?timeout={number}", number) for number in ("5e-324", "1e400", "nan", "-0.0", "1e-9")],
)
async def test_times_in_urls(shared: World, path: str, number: str) -> None:
    async with shared.client() as client:
        answer = await client.post(path)
    assert answer.status_code == (400 if number in ("1e400", "nan") else 200)
