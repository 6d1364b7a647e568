"""Replies fit OpenAI's own description of them."""

from __future__ import annotations

from typing import Any

import pytest

from phloem_proto.messages import ErrorInfo

from .backend import MODEL
from .openai_schemas import check
from .world import World, events

pytestmark = pytest.mark.anyio

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 2}
COMPLETION = {"model": MODEL, "prompt": ["hi", "ho"]}


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
