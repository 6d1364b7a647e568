"""Request ids: in every reply, and from a client's id to the one that other services' log lines carry."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import grpc
import pytest

from phloem_proto.messages import ErrorInfo

from .backend import MODEL, Script
from .grpc_client import Client, trailing
from .world import World

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def inside(caplog: pytest.LogCaptureFixture) -> dict[str, list[str]]:
    """Ids inside that the gateway's log lines give, by the client's id."""
    found: dict[str, list[str]] = {}
    for record in caplog.records:
        if record.name == "phloem.gateway" and hasattr(record, "inside"):
            found.setdefault(getattr(record, "request_id", ""), []).append(record.inside)
    return found


def opened(world: World) -> list[str]:
    return [order.rid.hex()[:8] for order in world.backend.scheduler.opened]


async def test_the_log_maps_a_clients_id_to_those_inside(shared: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phloem")
    await shared.post("/v1/chat/completions", BODY, headers={"x-request-id": "one"})
    await shared.post("/generate", {"text": ["a", "b"]}, headers={"x-request-id": "two"})
    assert inside(caplog) == {"one": opened(shared)[:1], "two": opened(shared)[1:]}


async def test_a_native_id_does_not_hide_the_headers(shared: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phloem")
    reply = await shared.post("/generate", {"text": "a", "rid": "own"}, headers={"x-request-id": "header"})
    assert (reply.json()["meta_info"]["id"], reply.headers["x-request-id"]) == ("own", "header")
    assert inside(caplog) == {"header": opened(shared)}


async def test_a_lost_attempt_is_logged_under_the_clients_id(shared: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phloem")
    scheduler = shared.backend.scheduler
    scheduler.script = Script(gap_s=0.01, step=1)

    async def lose() -> None:
        await shared.until(lambda: any(live.completion_tokens for live in shared.gateway.core.live.values()))
        shared.gateway._reopen(shared.gateway.core.lost(list(shared.gateway.core.live)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        reply = await shared.post("/v1/chat/completions", BODY, headers={"x-request-id": "one"})
    assert reply.json()["choices"][0]["message"]["content"] == "Hello world"
    assert len(opened(shared)) == 2
    assert inside(caplog) == {"one": opened(shared)}


@pytest.mark.parametrize(
    ("own", "header", "shown"),
    [
        ("own", None, "own"),
        ("own", "header", "own"),
        (None, "header", "header"),
        (None, "a b", None),
        (None, None, None),
    ],
)
async def test_ids_over_grpc(
    shared: World,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    own: str | None,
    header: str | None,
    shown: str | None,
) -> None:
    caplog.set_level(logging.INFO, "phloem")
    fields = {"text": "x"} | ({} if own is None else {"request_id": own})
    metadata = () if header is None else (("x-request-id", header),)
    call = client.method("Generate")(client.message("GenerateRequest", **fields), metadata=metadata)
    idents = {response.request_id async for response in call}
    idents |= {
        dict(await call.initial_metadata())["x-request-id"],
        dict(await call.trailing_metadata())["x-request-id"],
    }
    (ident,) = idents
    assert ident == shown if shown else ident.startswith("req-")
    assert inside(caplog) == {ident: opened(shared)}
    (line,) = [r for r in caplog.records if r.name == "phloem.gateway.grpc"]
    assert getattr(line, "request_id", "") == ident


async def test_errors_and_other_methods_over_grpc_tell_the_id(shared: World, client: Client) -> None:
    metadata = (("x-request-id", "mine"),)
    call = client.method("GetModelInfo")(client.message("GetModelInfoRequest"), metadata=metadata)
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
    shared.backend.scheduler.refuse_open = ErrorInfo("queue_full", "full", "", 2500)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(client.message("GenerateRequest", text="x"), metadata=metadata)
    assert (trailing(raised.value)["x-request-id"], trailing(raised.value)["retry-after"]) == ("mine", "3")
