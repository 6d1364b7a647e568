"""Health, metrics, keys, CORS, request ids, log lines, settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phloem_bus.errors import ConfigError
from phloem_gateway.__main__ import app
from phloem_gateway.auth import ANYONE, Keys
from phloem_gateway.config import GatewayConfig, read_keys
from phloem_gateway.errors import ApiError

from .backend import MODEL, Script
from .world import World, world

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_health_is_readiness_and_live_is_not() -> None:
    async with world() as made, made.client() as client:
        assert (await client.get("/health")).json() == {"status": "ready", "model": MODEL}
        await made.until(lambda: made.readiness[-1:] == [True])
        made.backend.scheduler.set_load(workers=0)
        await made.until(lambda: made.gateway.backends.trouble() is not None)
        health = await client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "No worker is ready.")
        assert (await client.get("/live")).status_code == 200
        await made.until(lambda: made.readiness[-2:] == [True, False])


async def test_metrics_tell_of_the_gateway_and_of_the_scheduler(shared: World) -> None:
    shared.backend.scheduler.script = Script(cached=4)
    shared.backend.scheduler.set_load(running=3, pages_free=10)
    await shared.until(lambda: shared.gateway.backends.leader().load.running == 3)
    async with shared.client() as client:
        before = lines((await client.get("/metrics")).text)
        await client.post("/v1/chat/completions", json=BODY)
        await client.get("/made-up-path")
        after = lines((await client.get("/metrics")).text)

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    assert grown("phloem_gateway_prompt_tokens_total") == 9
    assert grown("phloem_gateway_cached_tokens_total") == 4
    assert grown("phloem_gateway_completion_tokens_total") == 11
    assert grown("phloem_gateway_time_to_first_token_seconds_count") == 1
    assert grown('phloem_gateway_responses_total{endpoint="/v1/chat/completions",status="200"}') == 1
    assert grown('phloem_gateway_responses_total{endpoint="other",status="404"}') == 1
    assert after["phloem_gateway_requests_live"] == 0
    assert after['phloem_scheduler_requests_running{instance="sched0"}'] == 3
    assert after['phloem_scheduler_pages_free{instance="sched0"}'] == 10
    assert after['phloem_scheduler_evicted_tokens_total{instance="sched0"}'] == 7


def lines(text: str) -> dict[str, float]:
    return {
        name: float(value) for name, _, value in (x.rpartition(" ") for x in text.splitlines() if not x.startswith("#"))
    }


async def test_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# two keys\nalpha\n\nbeta\n")
    async with (
        world(GatewayConfig(http_port=None, grpc_port=None, api_keys_file=keys)) as made,
        made.client() as client,
    ):
        for path in ("/health", "/live"):
            assert (await client.get(path)).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer gamma"},
            {"authorization": "Basic alpha"},
            {"authorization": "alpha"},
        ):
            for path in ("/v1/models", "/metrics", "/nowhere"):
                refused = await client.get(path, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
                assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("alpha", "beta"):
            assert (await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code == 200


def test_owners_differ_by_key_and_do_not_show_it() -> None:
    names = [f"key-{number}" for number in range(2000)]
    keys = Keys(names)
    owners = {keys.owner(f"bearer {key}") for key in names}
    assert len(owners) == 2000
    assert not owners & set(names)
    assert {len(owner) for owner in owners} == {32}  # 128 bits: no two keys share leases, whoever made them
    assert Keys().owner(None) == ANYONE
    with pytest.raises(ApiError):
        keys.owner("Bearer \udcff")


def test_key_files_that_are_no_use_are_refused_at_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(ConfigError) as raised:
            read_keys(path)
        assert raised.value.setting == "--api-keys-file"


async def test_cors_is_off_unless_set(shared: World) -> None:
    origin = {"origin": "https://app.example"}
    preflight = origin | {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with shared.client() as client:
        assert "access-control-allow-origin" not in (await client.get("/health", headers=origin)).headers
        assert (await client.options("/v1/chat/completions", headers=preflight)).status_code == 405
    config = GatewayConfig(http_port=None, grpc_port=None, cors_origins=("https://app.example",))
    async with world(config) as made, made.client() as client:
        allowed = await client.options("/v1/chat/completions", headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        other = await client.get("/health", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("given", ["abc-1", "a" * 128])
async def test_a_sane_request_id_is_taken_and_logged(
    shared: World, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "phloem"):
        response = await shared.post("/v1/chat/completions", BODY, headers={"x-request-id": given})
    assert response.headers["x-request-id"] == given
    about = [r for r in caplog.records if r.name.startswith("phloem.gateway") and hasattr(r, "request_id")]
    assert about
    assert all(getattr(r, "request_id", "") == given for r in about)
    assert "POST /v1/chat/completions 200" in about[-1].getMessage()


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "é", 'a"b'])
async def test_another_request_id_is_replaced(shared: World, given: str) -> None:
    response = await shared.post("/v1/chat/completions", BODY, headers={"x-request-id": given.encode()})
    assert response.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "setting", [["--http-port", "70000"], ["--grpc-port", "-5"], ["--request-timeout", "0"], ["--max-live", "0"]]
)
def test_settings_are_checked_at_start(setting: list[str]) -> None:
    result = CliRunner().invoke(app, setting)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {setting[0]}")
    assert len(result.stderr.splitlines()) == 1


def test_help_names_flags_and_variables() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160"}).stdout
    for name in ("--http-port", "PHLOEM_HTTP_PORT", "--grpc-port", "PHLOEM_GRPC_PORT", "--api-keys-file", "--nats-url"):
        assert name in shown
