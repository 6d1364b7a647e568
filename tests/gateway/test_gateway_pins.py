"""``/pins`` and the gRPC methods beside it: leases on prefixes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from phloem_gateway.config import GatewayConfig
from phloem_proto import messages as m
from phloem_proto.codec import unpack_ids
from phloem_proto.v1 import phloem_pb2 as pb

from .backend import CONTEXT, VOCAB, Script
from .cache_backend import PAGE, FakeCache
from .grpc_client import Client, trailing
from .openai_schemas import check
from .world import Caller, World, world

pytestmark = pytest.mark.anyio

TEXT = "a prompt of 23 letters."


def text_of(ids: bytes) -> str:
    return bytes(list(unpack_ids(ids))).decode()


async def call(made: World, method: str, path: str, body: Any = None, **options: Any) -> Any:
    async with made.client() as http:
        return await http.request(method, path, json=body, **options)


async def test_a_prompt_is_computed_and_then_kept(shared: World, cache: FakeCache) -> None:
    shared.backend.scheduler.script = Script(cached=8)
    before = time.time()
    made = await shared.post("/pins", {"text": TEXT, "ttl_s": 60, "id": "mine", "cache_salt": "s", "extra_key": "e"})
    reply = made.json()
    assert before + 59 <= reply.pop("expires_at") <= time.time() + 60
    assert (made.status_code, reply) == (
        200,
        {"id": "mine", "object": "pin", "tokens": 20, "prompt_tokens": 23, "cached_tokens": 8, "ttl_s": 60, "worker": "worker0"},
    )  # fmt: skip
    (order,) = shared.backend.scheduler.opened
    assert (order.params.max_tokens, order.n, order.salt, order.extra, text_of(order.ids)) == (
        0, 1, "s", "e", TEXT,
    )  # fmt: skip
    pin = cache.asked[-1]
    assert isinstance(pin, m.Pin)
    assert (pin.owner, pin.pin, pin.gateway, pin.ttl_ms, pin.ids, pin.salt, pin.extra) == (
        "-", "mine", "gw", 60_000, order.ids, "s", "e",
    )  # fmt: skip
    assert shared.gateway.core.live == {}


async def test_ids_chats_and_defaults(shared: World, cache: FakeCache) -> None:
    first = (await shared.post("/pins", {"input_ids": [1, 2, 3, 4, 5]})).json()
    chat = {"messages": [{"role": "system", "content": "be kind"}], "chat_template_kwargs": {"a": 1}}
    second = (await shared.post("/pins", chat)).json()
    assert (first["tokens"], first["prompt_tokens"], first["ttl_s"]) == (4, 5, 300)
    assert first["id"] != second["id"]
    assert first["id"].startswith("pin-")
    assert shared.backend.tokenizer.encoded[-1].template_kwargs == '{"a":1}'
    assert text_of(cache.asked[-1].ids) == "<system>be kind\n"  # type: ignore[union-attr]


async def test_a_lease_is_renewed_listed_and_ended(shared: World, cache: FakeCache) -> None:
    await shared.post("/pins", {"text": TEXT, "id": "one", "ttl_s": 5})
    await shared.post("/pins", {"text": TEXT, "id": "a/b c"})
    renewed = (await shared.post("/pins/one", {"ttl_s": 1.5})).json()
    assert {key: renewed[key] for key in ("id", "object", "tokens", "ttl_s", "worker")} == {
        "id": "one", "object": "pin", "tokens": 20, "ttl_s": 1.5, "worker": "worker0",
    }  # fmt: skip
    assert cache.asked[-1] == m.Pin("-", "one", "gw", 1500)
    assert (await shared.post("/pins/one", {})).json()["ttl_s"] == 300
    listed = (await call(shared, "GET", "/pins")).json()
    assert (listed["object"], sorted(one["id"] for one in listed["data"])) == ("list", ["a/b c", "one"])
    ended = (await call(shared, "DELETE", "/pins/a%2Fb%20c")).json()
    assert ended == {"id": "a/b c", "object": "pin", "tokens": 20, "deleted": True}
    assert [one["id"] for one in (await call(shared, "GET", "/pins")).json()["data"]] == ["one"]


async def test_a_known_id_gets_the_new_prompt(shared: World, cache: FakeCache) -> None:
    await shared.post("/pins", {"text": TEXT, "id": "mine"})
    again = await shared.post("/pins", {"text": "x" * 8, "id": "mine"})
    assert (again.json()["tokens"], len(cache.pins)) == (8, 1)


@pytest.mark.parametrize(
    ("kept", "tries", "tokens"),
    [([12], 2, 20), ([None], 2, 20), ([12, None], 3, 20), ([4, 8, 12], 3, 12), ([None, None, 16], 3, 16)],
)
async def test_what_is_evicted_in_between_is_computed_again_and_what_is_kept_is_told(
    shared: World, cache: FakeCache, kept: list[int | None], tries: int, tokens: int
) -> None:
    cache.kept = list(kept)
    shared.backend.scheduler.script = Script(cached=4)
    reply = (await shared.post("/pins", {"text": TEXT})).json()
    assert (reply["tokens"], reply["prompt_tokens"], reply["cached_tokens"]) == (tokens, 23, 4)
    assert len(shared.backend.scheduler.opened) == tries
    assert [info.tokens for info in cache.pins.values()] == [tokens]


async def test_a_prompt_that_never_stays_is_503(shared: World, cache: FakeCache) -> None:
    cache.kept = [None, None, None]
    refused = await shared.post("/pins", {"text": TEXT})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
    assert (refused.headers["retry-after"], cache.pins) == ("1", {})


async def test_over_a_limit_is_429_and_other_refusals_are_what_they_are(
    shared: World, cache: FakeCache, client: Client
) -> None:
    for code, status, retry in (("busy", 429, "3"), ("unavailable", 503, "3"), ("internal", 500, None)):
        cache.refuse = m.ErrorInfo(code, "16 pins are live already", retry_after_ms=2500)
        refused = await shared.post("/pins", {"text": TEXT})
        assert (refused.status_code, refused.headers.get("retry-after")) == (status, retry)
    cache.refuse = m.ErrorInfo("busy", "16 pins are live already")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.method("Pin")(client.message("PinRequest", text=TEXT))
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing(raised.value)["retry-after"] == "1"


async def test_a_prompt_that_cannot_be_computed_is_refused_as_any_other(shared: World, cache: FakeCache) -> None:
    shared.backend.scheduler.refuse_open = m.ErrorInfo("queue_full", "full", retry_after_ms=4000)
    refused = await shared.post("/pins", {"text": TEXT})
    assert (refused.status_code, refused.headers["retry-after"], cache.asked) == (429, "4", [])
    shared.backend.scheduler.refuse_open = None
    shared.backend.scheduler.script = Script(end=m.End("error", code="internal", message="boom"))
    assert (await shared.post("/pins", {"text": TEXT})).status_code == 500
    assert cache.asked == []


async def test_without_a_worker_is_503(cache: FakeCache) -> None:
    async with world() as made:
        FakeCache.attach(made.backend.scheduler)
        made.backend.scheduler.set_load(workers=0)
        await made.until(lambda: made.gateway.backends.trouble() is not None)
        refused = await made.post("/pins", {"text": TEXT})
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "No worker is ready.")
        assert (await call(made, "GET", "/pins")).json() == {"object": "list", "data": []}
    async with world(schedulers=0, wait=False) as made:
        for method, path in (("GET", "/pins"), ("DELETE", "/pins/x")):
            refused = await call(made, method, path)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_a_client_that_leaves_takes_no_lease(shared: World, cache: FakeCache) -> None:
    scheduler = shared.backend.scheduler
    scheduler.script = Script(hold=anyio.Event())
    caller = Caller(shared.service.app)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.call, "/pins", json.dumps({"text": TEXT}).encode())
        await shared.until(lambda: bool(scheduler.running))
        caller.gone.set()
    await shared.until(lambda: not shared.gateway.core.live and not scheduler.running)
    assert (caller.status, cache.asked) == (None, [])


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
@pytest.mark.parametrize("own", [{}, {"id": "mine"}])
async def test_a_client_that_leaves_before_it_hears_of_its_lease_has_none_that_it_does_not_know(
    shared: World, cache: FakeCache, client: Client, over: str, own: dict[str, str]
) -> None:
    cache.hold = anyio.Event()
    caller = Caller(shared.service.app)
    async with anyio.create_task_group() as tasks:
        asked = None
        if over == "HTTP":
            tasks.start_soon(caller.call, "/pins", json.dumps({"text": TEXT} | own).encode())
        else:
            asked = client.method("Pin")(client.message("PinRequest", text=TEXT, **own))
        await shared.until(lambda: bool(cache.pins))
        caller.gone.set()
        if asked is not None:
            asked.cancel()
        if own:
            await shared.until(lambda: over == "gRPC" or caller.status is None)
        else:
            await shared.until(lambda: not cache.pins)
    assert [pin for _, pin in cache.pins] == list(own.values())


@pytest.mark.parametrize(("own", "left"), [({}, 0), ({"id": "mine"}, 1)])
async def test_an_error_after_a_part_was_kept_leaves_no_lease_that_its_client_does_not_know(
    own: dict[str, str], left: int
) -> None:
    async with world() as made:
        scheduler = made.backend.scheduler
        cache = FakeCache.attach(scheduler)
        cache.kept = [12]

        def refuse_from_now_on(_: Any) -> None:
            scheduler.refuse_open = m.ErrorInfo("queue_full", "full", retry_after_ms=1000)

        scheduler.node.on(m.Pin, refuse_from_now_on)
        refused = await made.post("/pins", {"text": TEXT} | own)
        assert (refused.status_code, len(cache.pins)) == (429, left)


async def test_owners_see_their_own_leases_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    async with world(GatewayConfig(http_port=None, grpc_port=0, api_keys_file=keys)) as made:
        cache = FakeCache.attach(made.backend.scheduler)
        alpha, beta = ({"authorization": f"Bearer {key}"} for key in ("alpha", "beta"))
        await call(made, "POST", "/pins", {"text": TEXT, "id": "x"}, headers=alpha)
        for method, body in (("POST", {"ttl_s": 5}), ("DELETE", None)):
            refused = await call(made, method, "/pins/x", body, headers=beta)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "id")
        assert (await call(made, "GET", "/pins", headers=beta)).json()["data"] == []
        mine = (await call(made, "GET", "/pins", headers=alpha)).text
        (owner, _), *_ = cache.pins
        assert owner not in mine
        assert "alpha" not in owner
        client = await Client.connect(made.service.grpc_port or 0)
        metadata = [("authorization", "Bearer alpha")]
        listed = await client.method("ListPins")(client.message("ListPinsRequest"), metadata=metadata)
        assert [one.id for one in listed.pins] == ["x"]
        await client.close()


PINS: list[tuple[str, Any, str, str]] = [
    ("nothing", {}, "invalid_request", "text"),
    ("two prompts", {"text": TEXT, "input_ids": [1]}, "invalid_request", "input_ids"),
    ("three prompts", {"text": TEXT, "input_ids": [1], "messages": []}, "invalid_request", "messages"),
    ("empty text", {"text": ""}, "invalid_value", "text"),
    ("text a list", {"text": [TEXT]}, "invalid_type", "text"),
    ("no ids", {"input_ids": []}, "invalid_value", "input_ids"),
    ("id out of range", {"input_ids": [1, VOCAB]}, "invalid_value", "input_ids[1]"),
    ("ids longer than the context", {"input_ids": [1] * CONTEXT}, "context_length_exceeded", "input_ids"),
    ("text longer than the context", {"text": "x" * CONTEXT}, "context_length_exceeded", "text"),
    ("no messages", {"messages": []}, "invalid_value", "messages"),
    ("unknown role", {"messages": [{"role": "x", "content": ""}]}, "invalid_value", "messages[0].role"),
    ("less than a page", {"text": "abc"}, "invalid_value", "text"),
    ("less than a page of ids", {"input_ids": [1]}, "invalid_value", "input_ids"),
    ("unknown model", {"text": TEXT, "model": "gpt-4"}, "model_not_found", "model"),
    *[(f"ttl {ttl!r}", {"text": TEXT, "ttl_s": ttl}, "invalid_value", "ttl_s") for ttl in (0, 0.9, -1, 3601, 1e300)],
    *[(f"ttl {ttl!r}", {"text": TEXT, "ttl_s": ttl}, "invalid_type", "ttl_s") for ttl in ("60", True, [60])],
    *[(f"id {ident!r:.12}", {"text": TEXT, "id": ident}, "invalid_value", "id") for ident in ("", "x" * 129, "a\nb", "\x7f")],
    ("id a number", {"text": TEXT, "id": 5}, "invalid_type", "id"),
    ("long salt", {"text": TEXT, "cache_salt": "x" * 257}, "invalid_value", "cache_salt"),
    ("long extra key", {"text": TEXT, "extra_key": "x" * 257}, "invalid_value", "extra_key"),
]  # fmt: skip


@pytest.mark.parametrize("case", PINS, ids=[case[0] for case in PINS])
async def test_bad_pins(
    shared: World, cache: FakeCache, schemas: dict[str, Any], case: tuple[str, Any, str, str]
) -> None:
    _, body, code, param = case
    refused = await shared.post("/pins", body)
    check(schemas, "ErrorResponse", refused.json())
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error["message"]
    assert refused.status_code == (404 if code == "model_not_found" else 400)
    assert cache.asked == []
    assert shared.gateway.admission.requests == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "param"),
    [
        ("POST", "/pins/unknown", {"ttl_s": 5}, "invalid_request", "id"),
        ("DELETE", "/pins/unknown", None, "invalid_request", "id"),
        ("POST", "/pins/" + "x" * 129, {}, "invalid_value", "id"),
        ("DELETE", "/pins/%00", None, "invalid_value", "id"),
        ("DELETE", "/pins/", None, "invalid_value", "id"),
        ("POST", "/pins/unknown", {"ttl_s": 0}, "invalid_value", "ttl_s"),
        ("POST", "/pins/unknown", {"ttl_s": "5"}, "invalid_type", "ttl_s"),
        ("POST", "/pins/unknown", [], "invalid_type", None),
    ],
)
async def test_bad_renewals_and_ends(
    shared: World, cache: FakeCache, method: str, path: str, body: Any, code: str, param: str | None
) -> None:
    refused = await call(shared, method, path, body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, code, param), error["message"]


async def test_wrong_methods(shared: World, cache: FakeCache) -> None:
    for method, path in (("PUT", "/pins"), ("DELETE", "/pins"), ("GET", "/pins/x"), ("POST", "/radix")):
        refused = await call(shared, method, path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_over_grpc(shared: World, cache: FakeCache, client: Client) -> None:
    async def ask(method: str, request: str, **fields: Any) -> Any:
        return await client.method(method)(client.message(request, **fields))

    shared.backend.scheduler.script = Script(cached=4)
    request = client.message("PinRequest", text=TEXT, id="mine", cache_salt="s", extra_key="e", ttl_seconds=60)
    made = await client.method("Pin")(request)
    assert (made.pin.id, made.pin.tokens, made.pin.worker, made.pin.ttl_seconds) == ("mine", 20, "worker0", 60)
    assert (made.prompt_tokens, made.cached_tokens) == (23, 4)
    assert time.time() + 55 < made.pin.expires_at <= time.time() + 60
    order = shared.backend.scheduler.opened[0]
    assert (order.params.max_tokens, order.salt, order.extra) == (0, "s", "e")
    chat = client.message("PinRequest")
    message = chat.chat.messages.add()
    message.role, message.content = "user", "hello there"
    drawn = await client.method("Pin")(chat)
    assert (drawn.pin.ttl_seconds, drawn.pin.tokens) == (300, 16)
    assert (await ask("RenewPin", "RenewPinRequest", id="mine", ttl_seconds=5)).ttl_seconds == 5
    assert [one.id for one in (await ask("ListPins", "ListPinsRequest")).pins] == ["mine", drawn.pin.id]
    assert (await ask("Unpin", "UnpinRequest", id="mine")).tokens == 20
    assert [one.id for one in (await ask("ListPins", "ListPinsRequest")).pins] == [drawn.pin.id]


GRPC_PINS: list[tuple[str, Any, str]] = [
    ("Pin", pb.PinRequest(), "prompt"),
    ("Pin", pb.PinRequest(text=""), "text"),
    ("Pin", pb.PinRequest(text="abc"), "text"),
    ("Pin", pb.PinRequest(token_ids=pb.TokenIds(ids=[VOCAB])), "token_ids.ids[0]"),
    ("Pin", pb.PinRequest(chat=pb.Chat()), "chat.messages"),
    ("Pin", pb.PinRequest(text=TEXT, ttl_seconds=0), "ttl_seconds"),
    ("Pin", pb.PinRequest(text=TEXT, ttl_seconds=float("nan")), "ttl_seconds"),
    ("Pin", pb.PinRequest(text=TEXT, ttl_seconds=4000), "ttl_seconds"),
    ("Pin", pb.PinRequest(text=TEXT, id=""), "id"),
    ("Pin", pb.PinRequest(text=TEXT, id="x" * 129), "id"),
    ("Pin", pb.PinRequest(text=TEXT, cache_salt="x" * 257), "cache_salt"),
    ("Pin", pb.PinRequest(text=TEXT, extra_key="x" * 257), "extra_key"),
    ("RenewPin", pb.RenewPinRequest(), "id"),
    ("RenewPin", pb.RenewPinRequest(id="unknown"), "id"),
    ("RenewPin", pb.RenewPinRequest(id="unknown", ttl_seconds=0.5), "ttl_seconds"),
    ("Unpin", pb.UnpinRequest(), "id"),
    ("Unpin", pb.UnpinRequest(id="unknown"), "id"),
]


@pytest.mark.parametrize(("method", "request_", "param"), GRPC_PINS)
async def test_bad_pins_over_grpc(
    shared: World, cache: FakeCache, client: Client, method: str, request_: Any, param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.method(method)(request_)
    assert (raised.value.code(), trailing(raised.value)["phloem-error-param"]) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        param,
    )
    assert cache.pins == {}


async def test_pages_are_told_by_the_scheduler_once(shared: World, cache: FakeCache) -> None:
    for _ in range(3):
        assert (await shared.post("/pins", {"text": TEXT})).json()["tokens"] == 23 // PAGE * PAGE
    assert len(cache.looked) <= 1
