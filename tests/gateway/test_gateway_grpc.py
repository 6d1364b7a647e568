"""The gRPC edge, through a client that knows only what reflection tells."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from phloem_gateway.config import GatewayConfig
from phloem_proto.codec import unpack_ids

from .backend import MODEL, Script
from .grpc_client import SERVICE, Client, trailing
from .world import World, world

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


async def test_reflection_lists_the_services(client: Client) -> None:
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= set(client.services)


async def test_a_generation(shared: World, client: Client) -> None:
    shared.backend.scheduler.script = Script(cached=3)
    request = client.message("GenerateRequest", text="hey", request_id="g-1", logprobs=1)
    request.sampling.n = 2
    request.sampling.temperature = 0.7
    request.sampling.stop.append("wor")
    responses = await client.generate(request)
    for index in range(2):
        mine = [r for r in responses if r.index == index]
        chunks = [r.chunk for r in mine if r.WhichOneof("event") == "chunk"]
        assert "".join(c.text for c in chunks) == "Hello "
        assert bytes(token for c in chunks for token in c.token_ids) == b"Hello wor"
        assert [entry.piece for c in chunks for entry in c.logprobs][:2] == [b"H", b"e"]
        assert chunks[0].logprobs[0].alternatives[0].id == 72
        last = mine[-1].complete
        assert (last.finish_reason, last.WhichOneof("matched_stop"), last.stop) == ("stop", "stop", "wor")
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (3, 9, 3)
    assert {r.request_id for r in responses} == {"g-1"}
    assert shared.backend.scheduler.opened[0].params.temperature == 0.7


async def test_unset_fields_take_their_defaults_and_zero_is_zero(shared: World, client: Client) -> None:
    await client.generate(client.message("GenerateRequest", text="hey"))
    request = client.message("GenerateRequest", text="hey", json_object=True, cache_salt="s", priority=-2)
    request.sampling.temperature = 0.0
    request.sampling.max_tokens = 0
    request.sampling.seed = 0
    await client.generate(request)
    first, second = shared.backend.scheduler.opened
    assert (first.params.temperature, first.params.max_tokens, first.grammar) == (1.0, 509, None)
    assert (second.params.temperature, second.params.max_tokens, second.seed) == (0.0, 0, 0)
    assert second.grammar is not None
    assert (second.grammar.kind, second.salt, second.priority) == ("json_object", "s", -2)


async def test_every_parameter_means_what_it_means_over_http(shared: World, client: Client) -> None:
    numbers: dict[str, Any] = {
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "frequency_penalty": 0.1, "presence_penalty": -0.2,
        "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True, "seed": -42, "n": 2, "skip_special_tokens": False,
        "include_stop_str_in_output": True, "stop": ["x", "yy"], "stop_token_ids": [3],
    }  # fmt: skip
    common: dict[str, Any] = {"regex": "a+", "cache_salt": "tenant", "extra_key": "adapter", "priority": 3}
    body = {"model": MODEL, "prompt": "hey", "logprobs": 2, "logit_bias": {"5": -100, "7": 1.5}} | numbers | common
    assert (await shared.post("/v1/completions", body)).status_code == 200
    request = client.message("GenerateRequest", text="hey", logprobs=2, **common)
    for name, value in numbers.items():
        if isinstance(value, list):
            getattr(request.sampling, name).extend(value)
        else:
            setattr(request.sampling, name, value)
    request.sampling.logit_bias.update({5: -100.0, 7: 1.5})
    await client.generate(request)
    shown = [
        (order.params, order.seed, order.n, order.grammar, order.salt, order.extra, order.priority, order.ids)
        for order in shared.backend.scheduler.opened
    ]
    assert shown[0] == shown[1]
    streams = [(x.stop, x.include_stop, x.skip_special_tokens, x.logprobs) for x in shared.backend.tokenizer.opened]
    assert streams[0] == streams[1]


async def test_chat_and_token_ids(shared: World, client: Client) -> None:
    request = client.message("GenerateRequest")
    message = request.chat.messages.add()
    message.role, message.content = "developer", "x"
    request.chat.template_kwargs_json = '{"a": 1}'
    await client.generate(request)
    request = client.message("GenerateRequest")
    request.token_ids.ids.extend([5, 6])
    request.prompt_logprobs = 0
    responses = await client.generate(request)
    encoded = shared.backend.tokenizer.encoded
    assert (encoded[0].messages[0].role, encoded[0].template_kwargs) == ("system", '{"a": 1}')
    assert list(unpack_ids(shared.backend.scheduler.opened[1].ids)) == [5, 6]
    assert [entry.id for entry in responses[0].chunk.prompt_logprobs] == [5, 6]


async def test_a_cancelled_call_is_cancelled_everywhere(shared: World, client: Client) -> None:
    scheduler = shared.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    call = client.method("Generate")(client.message("GenerateRequest", text="x"))
    await call.read()
    call.cancel()
    await shared.until(lambda: not scheduler.running)
    assert shared.gateway.core.live == {}


async def test_the_clients_deadline_travels(shared: World, client: Client) -> None:
    shared.backend.scheduler.script = Script(hold=anyio.Event())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(client.message("GenerateRequest", text="x"), timeout=0.3)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < shared.backend.scheduler.opened[0].deadline_ms <= 300
    await shared.until(lambda: not shared.backend.scheduler.running)


async def test_abort_ends_the_callers_request_and_an_id_is_live_only_once(shared: World, client: Client) -> None:
    scheduler = shared.backend.scheduler
    scheduler.script = Script(hold=anyio.Event(), hold_after=4)
    responses: list[Any] = []

    async def call() -> None:
        responses.extend(await client.generate(client.message("GenerateRequest", text="x", request_id="mine")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await shared.until(lambda: any(live.completion_tokens for live in shared.gateway.core.live.values()))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.generate(client.message("GenerateRequest", text="x", request_id="mine"))
        assert raised.value.code() == grpc.StatusCode.ALREADY_EXISTS
        reply = await client.method("Abort")(client.message("AbortRequest", request_ids=["mine", "nobody"]))
        assert reply.aborted == 1
    assert responses[-1].complete.finish_reason == "abort"
    await shared.until(lambda: not scheduler.running)


async def test_tokenize_detokenize_info_loads_flush(shared: World, client: Client) -> None:
    async def call(method: str, request: str, **fields: Any) -> Any:
        return await client.method(method)(client.message(request, **fields))

    assert list((await call("Tokenize", "TokenizeRequest", text="hi")).token_ids) == [104, 105]
    assert (await call("Detokenize", "DetokenizeRequest", token_ids=[104, 105])).text == "hi"
    info = await call("GetModelInfo", "GetModelInfoRequest")
    assert (info.model, info.context_length, info.vocab_size, info.model_digest) == (MODEL, 512, 1000, "m" * 64)
    loads = await call("GetLoads", "GetLoadsRequest")
    assert [(x.instance, x.leading, x.workers) for x in loads.schedulers] == [("sched0", True, 1)]
    assert (await call("FlushCache", "FlushCacheRequest", timeout_seconds=1)).flushed_pages == 5
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call("Tokenize", "TokenizeRequest")
    assert trailing(raised.value)["phloem-error-param"] == "input"


async def test_readiness_and_liveness(shared: World, client: Client) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)

    async def status(service: str) -> Any:
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    async def becomes(service: str, wanted: Any) -> None:
        """Watch, as a load balancer does, until ``wanted`` is told."""
        with anyio.fail_after(5.0):
            async for told in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
                if told.status == wanted:
                    return

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert [await status(name) for name in ("", SERVICE, "phloem.v1.Liveness")] == [serving] * 3
    shared.backend.scheduler.set_load(workers=0)
    await becomes("", not_serving)
    assert await status("phloem.v1.Liveness") == serving
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(client.message("GenerateRequest", text="x"))
    assert (raised.value.code(), trailing(raised.value)["retry-after"]) == (grpc.StatusCode.UNAVAILABLE, "1")
    shared.backend.scheduler.set_load(workers=1)
    await becomes("", serving)


async def test_keys_over_grpc(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\nsecret-1\n")
    async with world(GatewayConfig(http_port=None, grpc_port=0, api_keys_file=keys)) as made:
        client = await Client.connect(made.service.grpc_port or 0)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.generate(client.message("GenerateRequest", text="x"))
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer secret-1"),)
        assert await client.generate(client.message("GenerateRequest", text="x"), metadata=metadata)
        await client.close()


async def test_a_slow_reader_is_cut() -> None:
    async with world(GatewayConfig(http_port=None, grpc_port=0, byte_budget=20_000)) as made:
        scheduler = made.backend.scheduler
        scheduler.script = Script(says=lambda order, child: "x" * 500, step=1, gap_s=0.001)
        client = await Client.connect(made.service.grpc_port or 0)
        request = client.message("GenerateRequest", text="x", logprobs=20)
        request.sampling.n = 16
        call = client.method("Generate")(request)
        await call.read()
        (live,) = made.gateway.core.live.values()
        await made.until(lambda: not made.gateway.core.live, timeout_s=20.0)
        assert not live.ended
        await made.until(lambda: not scheduler.running)
        call.cancel()
        await client.close()


def test_the_committed_stubs_are_what_the_proto_says(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "protoc", tmp_path], check=True, capture_output=True, timeout=60)
    made = tmp_path / "phloem_proto" / "v1"
    for name in ("phloem_pb2.py", "phloem_pb2.pyi", "phloem_pb2_grpc.py"):
        assert (made / name).read_text() == (ROOT / "proto" / "phloem_proto" / "v1" / name).read_text()
