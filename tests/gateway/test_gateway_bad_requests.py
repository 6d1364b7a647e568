"""Every bad request of the tables gets its status, code and parameter, over HTTP and where it applies over gRPC, before any work."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from phloem_proto.messages import End, ErrorInfo
from phloem_proto.v1 import phloem_pb2 as pb

from .backend import CONTEXT, MODEL, VOCAB, Script
from .bad_requests import CHATS, COMPLETION, COMPLETIONS, GENERATES, USER, Bad
from .grpc_client import SERVICE, Client, trailing
from .openai_schemas import check
from .world import Caller, World

pytestmark = pytest.mark.anyio

TABLE = [("/v1/chat/completions", bad) for bad in CHATS]
TABLE += [("/v1/completions", bad) for bad in COMPLETIONS]
TABLE += [("/generate", bad) for bad in GENERATES]


@pytest.mark.parametrize(("path", "bad"), TABLE, ids=[f"{path}: {bad.name}" for path, bad in TABLE])
async def test_bad_request_over_http(shared: World, schemas: dict[str, Any], path: str, bad: Bad) -> None:
    content = bad.body if isinstance(bad.body, bytes) else json.dumps(bad.body).encode()
    async with shared.client() as client:
        response = await client.post(path, content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (bad.status, bad.code, bad.param), error["message"]
    assert error["message"].strip()
    assert error["type"] == "invalid_request_error"
    check(schemas, "ErrorResponse", response.json())
    if bad.code == "context_length_exceeded":
        assert str(CONTEXT) in error["message"] or str(CONTEXT - 1) in error["message"]
    assert "Traceback" not in response.text
    assert "/work" not in response.text
    assert shared.backend.scheduler.opened == []
    assert shared.gateway.admission.requests == 0


def sampling(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", sampling=pb.SamplingParams(**fields))


def chat(*messages: tuple[str, str]) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages]))


def ids(*tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=tokens))


def template(variables: str) -> pb.GenerateRequest:
    request = chat(("user", "x"))
    request.chat.template_kwargs_json = variables
    return request


INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
GRPC_TABLE: list[tuple[str, pb.GenerateRequest, grpc.StatusCode, str, str]] = [
    ("no prompt", pb.GenerateRequest(), INVALID, "missing_required_parameter", "prompt"),
    ("unknown model", pb.GenerateRequest(text="hi", model="gpt-4"), NOT_FOUND, "model_not_found", "model"),
    ("empty text", pb.GenerateRequest(text=""), INVALID, "invalid_value", "text"),
    ("no messages", chat(), INVALID, "invalid_value", "chat.messages"),
    ("unknown role", chat(("wizard", "x")), INVALID, "invalid_value", "chat.messages[0].role"),
    ("no ids", ids(), INVALID, "invalid_value", "token_ids.ids"),
    ("id out of range", ids(1, VOCAB), INVALID, "invalid_value", "token_ids.ids[1]"),
    ("ids too long", ids(*[1] * CONTEXT), INVALID, "context_length_exceeded", "token_ids.ids"),
    ("text too long", pb.GenerateRequest(text="x" * CONTEXT), INVALID, "context_length_exceeded", "text"),
    ("chat too long", chat(("user", "x" * CONTEXT)), INVALID, "context_length_exceeded", "chat.messages"),
    ("max_tokens", sampling(max_tokens=-1), INVALID, "invalid_value", "sampling.max_tokens"),
    ("min_tokens", sampling(max_tokens=1, min_tokens=2), INVALID, "invalid_value", "sampling.min_tokens"),
    ("temperature", sampling(temperature=2.5), INVALID, "invalid_value", "sampling.temperature"),
    ("temperature NaN", sampling(temperature=float("nan")), INVALID, "invalid_value", "sampling.temperature"),
    ("top_p", sampling(top_p=0), INVALID, "invalid_value", "sampling.top_p"),
    ("top_k", sampling(top_k=-2), INVALID, "invalid_value", "sampling.top_k"),
    ("min_p", sampling(min_p=2), INVALID, "invalid_value", "sampling.min_p"),
    ("frequency_penalty", sampling(frequency_penalty=3), INVALID, "invalid_value", "sampling.frequency_penalty"),
    ("presence_penalty", sampling(presence_penalty=-3), INVALID, "invalid_value", "sampling.presence_penalty"),
    ("repetition_penalty", sampling(repetition_penalty=0), INVALID, "invalid_value", "sampling.repetition_penalty"),
    ("n", sampling(n=0), INVALID, "invalid_value", "sampling.n"),
    ("n too large", sampling(n=9), INVALID, "invalid_value", "sampling.n"),
    ("too many stops", sampling(stop=["x"] * 17), INVALID, "invalid_value", "sampling.stop"),
    ("empty stop", sampling(stop=[""]), INVALID, "invalid_value", "sampling.stop[0]"),
    ("stop id", sampling(stop_token_ids=[VOCAB]), INVALID, "invalid_value", "sampling.stop_token_ids[0]"),
    ("logit_bias", sampling(logit_bias={5: 101}), INVALID, "invalid_value", "sampling.logit_bias.5"),
    ("logit_bias id", sampling(logit_bias={VOCAB: 1}), INVALID, "invalid_value", "sampling.logit_bias"),
    ("logprobs", pb.GenerateRequest(text="hi", logprobs=21), INVALID, "invalid_value", "logprobs"),
    ("prompt_logprobs", pb.GenerateRequest(text="hi", prompt_logprobs=-2), INVALID, "invalid_value", "prompt_logprobs"),
    ("logprob_start", pb.GenerateRequest(text="hi", logprob_start=-1), INVALID, "invalid_value", "logprob_start"),
    ("long salt", pb.GenerateRequest(text="hi", cache_salt="x" * 257), INVALID, "invalid_value", "cache_salt"),
    ("long extra key", pb.GenerateRequest(text="hi", extra_key="x" * 257), INVALID, "invalid_value", "extra_key"),
    ("priority", pb.GenerateRequest(text="hi", priority=-(2**31)), INVALID, "invalid_value", "priority"),
    ("request id", pb.GenerateRequest(text="hi", request_id="x" * 200), INVALID, "invalid_value", "request_id"),
    ("schema no JSON", pb.GenerateRequest(text="hi", json_schema="{"), INVALID, "invalid_value", "json_schema"),
    ("long stop", sampling(stop=["x" * 2000]), INVALID, "invalid_value", "sampling.stop[0]"),
    ("too many stop ids", sampling(stop_token_ids=[1] * 200), INVALID, "invalid_value", "sampling.stop_token_ids"),
    ("min_tokens negative", sampling(min_tokens=-1), INVALID, "invalid_value", "sampling.min_tokens"),
    ("temperature negative", sampling(temperature=-0.5), INVALID, "invalid_value", "sampling.temperature"),
    ("temperature infinite", sampling(temperature=float("inf")), INVALID, "invalid_value", "sampling.temperature"),
    ("top_p over 1", sampling(top_p=1.5), INVALID, "invalid_value", "sampling.top_p"),
    ("min_p NaN", sampling(min_p=float("nan")), INVALID, "invalid_value", "sampling.min_p"),
    ("n negative", sampling(n=-1), INVALID, "invalid_value", "sampling.n"),
    ("template_kwargs no JSON", template("{"), INVALID, "invalid_value", "chat.template_kwargs_json"),
    ("template_kwargs a list", template("[]"), INVALID, "invalid_value", "chat.template_kwargs_json"),
    ("second message", chat(("user", "x"), ("wizard", "x")), INVALID, "invalid_value", "chat.messages[1].role"),
    ("empty id", pb.GenerateRequest(text="hi", request_id=""), INVALID, "invalid_value", "request_id"),
    ("schema a list", pb.GenerateRequest(text="hi", json_schema="[]"), INVALID, "invalid_type", "json_schema"),
]


@pytest.mark.parametrize("case", GRPC_TABLE, ids=[case[0] for case in GRPC_TABLE])
async def test_bad_request_over_grpc(
    shared: World, client: Client, case: tuple[str, pb.GenerateRequest, grpc.StatusCode, str, str]
) -> None:
    _, request, status, code, param = case
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(request)
    told = trailing(raised.value)
    assert (raised.value.code(), told["phloem-error-code"], told["phloem-error-param"]) == (status, code, param)
    assert raised.value.details()
    assert shared.backend.scheduler.opened == []


async def test_both_numbers_are_told_when_a_prompt_is_too_long(shared: World) -> None:
    error = (await shared.post("/v1/completions", COMPLETION | {"prompt": [1] * 600})).json()["error"]
    assert "512 tokens" in error["message"]
    assert "600 tokens" in error["message"]


async def test_a_body_over_the_limit_is_refused_before_it_is_read(shared: World) -> None:
    async with shared.client() as http:
        response = await http.post(
            "/v1/chat/completions", content=b"x" * 100_001, headers={"content-type": "application/json"}
        )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


async def test_a_chunked_body_over_the_limit_is_refused(shared: World) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 10_000

    async with shared.client() as http:
        response = await http.post("/generate", content=pieces(), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/nowhere", {}, 404, "not_found"),
        ("POST", "/v1/embeddings", {}, 404, "not_found"),
        ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", {}, 405, "method_not_allowed"),
        ("POST", "/v1/completions", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ("POST", "/generate", {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ("POST", "/tokenize", {"content-type": "application/json"}, 400, "invalid_json"),
    ],
)
async def test_wrong_paths_methods_and_types(
    shared: World, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    async with shared.client() as http:
        response = await http.request(method, path, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    if status == 405:
        assert response.headers["allow"]


BUS_ERRORS = [
    ("prompt_too_long", "context_length_exceeded", 400, "messages", grpc.StatusCode.INVALID_ARGUMENT),
    ("invalid_request", "invalid_request", 400, "messages", grpc.StatusCode.INVALID_ARGUMENT),
    ("queue_full", "rate_limit_exceeded", 429, None, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("internal", "internal_error", 500, None, grpc.StatusCode.INTERNAL),
    ("deadline", "deadline_exceeded", 504, None, grpc.StatusCode.DEADLINE_EXCEEDED),
]


@pytest.mark.parametrize(
    ("code", "shown", "status", "param", "grpc_status"), BUS_ERRORS, ids=[b[0] for b in BUS_ERRORS]
)
async def test_refusals_by_the_scheduler(
    shared: World, client: Client, code: str, shown: str, status: int, param: str | None, grpc_status: grpc.StatusCode
) -> None:
    shared.backend.scheduler.refuse_open = ErrorInfo(code, "told by the scheduler", "ids", 2500)
    body = {"model": MODEL, "messages": USER}
    for stream in (False, True):
        response = await shared.post("/v1/chat/completions", body | {"stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, shown, param)
        assert response.headers.get("retry-after") == ("3" if status == 429 else None)
        assert ("told by the scheduler" in error["message"]) == (code != "internal")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(pb.GenerateRequest(text="hi"))
    assert raised.value.code() == grpc_status
    if status == 429:
        assert trailing(raised.value)["retry-after"] == "3"


GRAMMAR_CODES = ["grammar_invalid", "grammar_unsupported", "grammar_too_large"]


@pytest.mark.parametrize("code", GRAMMAR_CODES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_grammar_is_a_400_that_names_the_field(shared: World, code: str, stream: bool) -> None:
    shared.backend.scheduler.script = Script(end=End("error", code=code, message="unbalanced ( at 3"))
    async with shared.client() as http:
        for path, body, param in (
            ("/v1/chat/completions", {"model": MODEL, "messages": USER, "regex": "a("}, "regex"),
            ("/v1/completions", COMPLETION | {"response_format": {"type": "json_object"}}, "response_format"),
            ("/generate", {"text": "x", "sampling_params": {"regex": "a("}}, "sampling_params.regex"),
        ):
            response = await http.post(path, json=body | {"stream": stream})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, code, param)
            assert error["message"] == "unbalanced ( at 3"


@pytest.mark.parametrize("field", ["regex", "json_schema", "json_object"])
async def test_an_invalid_grammar_over_grpc(shared: World, client: Client, field: str) -> None:
    shared.backend.scheduler.script = Script(end=End("error", code="grammar_invalid", message="unbalanced ( at 3"))
    grammar: dict[str, Any] = {field: {"regex": "a(", "json_schema": "{}", "json_object": True}[field]}
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(pb.GenerateRequest(text="hi", **grammar))
    told = trailing(raised.value)
    assert (raised.value.code(), raised.value.details()) == (INVALID, "unbalanced ( at 3")
    assert (told["phloem-error-code"], told["phloem-error-param"]) == ("grammar_invalid", field)


UNARY: list[tuple[str, Any, str, grpc.StatusCode]] = [
    ("Tokenize", pb.TokenizeRequest(), "input", INVALID),
    ("Tokenize", pb.TokenizeRequest(text="x", model="gpt-4"), "model", NOT_FOUND),
    ("Tokenize", pb.TokenizeRequest(chat=pb.Chat()), "chat.messages", INVALID),
    ("Detokenize", pb.DetokenizeRequest(token_ids=[1, VOCAB]), "token_ids[1]", INVALID),
    ("Detokenize", pb.DetokenizeRequest(model="gpt-4"), "model", NOT_FOUND),
    ("FlushCache", pb.FlushCacheRequest(timeout_seconds=-1), "timeout_seconds", INVALID),
    ("FlushCache", pb.FlushCacheRequest(timeout_seconds=1e9), "timeout_seconds", INVALID),
]


@pytest.mark.parametrize(("method", "request_", "param", "status"), UNARY)
async def test_bad_unary_requests_over_grpc(
    shared: World, client: Client, method: str, request_: Any, param: str, status: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.method(method)(request_)
    assert (raised.value.code(), trailing(raised.value)["phloem-error-param"]) == (status, param)


async def test_bytes_that_are_no_message_and_messages_too_large(shared: World, client: Client) -> None:
    path = f"/{SERVICE}/Generate"
    broken = client.channel.unary_stream(path, request_serializer=None, response_deserializer=None)
    for body, status in ((b"\xff" * 9, INVALID), (b"x" * 200_000, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await broken(body).read()
        assert raised.value.code() == status
        assert "Error parsing" not in (raised.value.details() or "")
    assert shared.backend.scheduler.opened == []


async def test_an_unexpected_error_shows_nothing(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret /etc/passwd of another request")

    monkeypatch.setattr(shared.gateway.admission, "take", broken)
    caller = Caller(shared.service.app)
    await caller.call("/v1/completions", json.dumps(COMPLETION).encode(), {"x-request-id": "abc-1"})
    assert caller.status == 500
    assert "secret" not in caller.text
    assert json.loads(caller.text)["error"]["code"] == "internal_error"
    head = dict(caller.sent[0]["headers"])
    assert head[b"x-request-id"] == b"abc-1"
