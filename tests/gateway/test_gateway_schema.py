"""Replies fit OpenAI's own description of them.

Relaxed, as OpenAI's own replies need it: in a stream chunk ``finish_reason`` and ``usage`` may be null (the description says
``nullable``, which JSON Schema does not know), and so may a token's logprob in an echoed prompt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from phloem_proto.messages import ErrorInfo

from .backend import MODEL
from .make_openai_excerpt import excerpt
from .world import World, events

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 2}
COMPLETION = {"model": MODEL, "prompt": ["hi", "ho"]}


def description() -> dict[str, Any]:
    """The whole description where it is at hand, else the committed excerpt."""
    folder = Path(os.environ.get("PHLOEM_DATA", HERE.parents[1].parent / "shared" / "data"))
    whole = folder / "openai_openapi.json"
    if whole.exists():
        return excerpt(json.loads(whole.read_text(encoding="utf-8"))["components"]["schemas"])
    loaded: dict[str, Any] = json.loads((HERE / "data" / "openai_excerpt.json").read_text(encoding="utf-8"))
    return loaded


def relax(node: Any) -> Any:
    """``nullable: true`` in JSON Schema's own words."""
    if isinstance(node, list):
        return [relax(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: relax(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") is True else made


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    made: dict[str, Any] = relax(description())
    stream = made["components"]["schemas"]["CreateChatCompletionStreamResponse"]["properties"]
    stream["usage"] = {"anyOf": [stream["usage"], {"type": "null"}]}
    completion = made["components"]["schemas"]["CreateCompletionResponse"]["properties"]
    choice = completion["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}  # in chunks
    completion["usage"] = {"anyOf": [completion["usage"], {"type": "null"}]}
    logprobs = choice["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):
        logprobs[name]["items"] = {"anyOf": [logprobs[name]["items"], {"type": "null"}]}
    return made


def check(schemas: dict[str, Any], name: str, reply: Any) -> None:
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **schemas}).validate(reply)


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 2}])
async def test_chat(shared: World, schemas: dict[str, Any], logprobs: dict[str, Any]) -> None:
    reply = (await shared.post("/v1/chat/completions", CHAT | logprobs)).json()
    check(schemas, "CreateChatCompletionResponse", reply)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in events((await shared.post("/v1/chat/completions", CHAT | logprobs | options)).text):
        check(schemas, "CreateChatCompletionStreamResponse", chunk)


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": 2}, {"logprobs": 2, "echo": True}])
async def test_completions(shared: World, schemas: dict[str, Any], logprobs: dict[str, Any]) -> None:
    reply = (await shared.post("/v1/completions", COMPLETION | logprobs)).json()
    check(schemas, "CreateCompletionResponse", reply)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in events((await shared.post("/v1/completions", COMPLETION | logprobs | options)).text):
        check(schemas, "CreateCompletionResponse", chunk)


async def test_models(shared: World, schemas: dict[str, Any]) -> None:
    async with shared.client() as client:
        check(schemas, "ListModelsResponse", (await client.get("/v1/models")).json())
        check(schemas, "Model", (await client.get(f"/v1/models/{MODEL}")).json())


async def test_errors(shared: World, schemas: dict[str, Any]) -> None:
    async with shared.client() as client:
        for response in (
            await client.get("/nowhere"),
            await client.get("/generate"),
            await client.post("/v1/completions", json={}),
            await client.post("/v1/completions", content=b"x", headers={"content-type": "text/plain"}),
        ):
            check(schemas, "ErrorResponse", response.json())
    shared.backend.scheduler.refuse_open = ErrorInfo("queue_full", "full")
    check(schemas, "ErrorResponse", (await shared.post("/v1/chat/completions", CHAT)).json())
