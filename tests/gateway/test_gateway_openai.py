"""``/v1``: replies, streams, logprobs, choices, usage."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import MODEL, Script
from .world import World, events

pytestmark = pytest.mark.anyio

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_chat_says_what_the_model_says(shared: World) -> None:
    shared.backend.scheduler.script = Script(cached=5)
    response = await shared.post("/v1/chat/completions", CHAT)
    reply = response.json()
    assert response.status_code == 200
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert reply["choices"][0]["finish_reason"] == "stop"
    prompt = len("<user>hi\n")
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 11,
        "total_tokens": prompt + 11,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert response.headers["x-request-id"].startswith("req-")
    await shared.until(lambda: len(shared.backend.scheduler.cancelled) == 1)
    assert shared.gateway.core.live == {}


async def test_a_stream_has_role_text_finish_usage_done(shared: World) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    shared.backend.scheduler.script = Script(says=lambda order, child: f"child {child}")
    response = await shared.post("/v1/chat/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert [c["choices"][0]["delta"]["role"] for c in chunks[:2]] == ["assistant", "assistant"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14
    for index in range(2):
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in mine) == f"child {index}"
        assert [c["finish_reason"] for c in mine].count("stop") == 1
        assert mine[-1]["finish_reason"] == "stop"
        assert mine[-1]["delta"] == {}


async def test_no_usage_chunk_unless_asked_for(shared: World) -> None:
    chunks = events((await shared.post("/v1/chat/completions", CHAT | {"stream": True})).text)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_everything_asked_for_reaches_the_scheduler(shared: World) -> None:
    body = CHAT | {
        "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 42, "n": 2,
        "stop": ["x", "yy"], "stop_token_ids": [3], "ignore_eos": True, "frequency_penalty": 0.1, "presence_penalty": -0.2,
        "repetition_penalty": 1.1, "logit_bias": {"5": -100, "7": 1.5}, "logprobs": True, "top_logprobs": 2, "min_tokens": 2,
        "cache_salt": "tenant", "priority": 3, "skip_special_tokens": False, "include_stop_str_in_output": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "user": "unknown fields are ignored",
    }  # fmt: skip
    response = await shared.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    order, stream = shared.backend.scheduler.opened[0], shared.backend.tokenizer.opened[0]
    params = order.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (7, 0.5, 0.9, 40, 0.1)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.1, -0.2, 1.1)
    assert (params.stop_token_ids, params.ignore_eos, params.logit_bias) == ((3,), True, ((5, -100.0), (7, 1.5)))
    assert (params.logprobs, params.min_tokens, order.seed, order.n) == (2, 2, 42, 2)
    assert (order.salt, order.priority) == ("tenant", 3)
    assert order.grammar is not None
    assert (order.grammar.kind, order.grammar.source, order.grammar.strict) == (
        "json_schema",
        '{"type":"object"}',
        True,
    )
    assert (stream.stop, stream.include_stop, stream.skip_special_tokens, stream.logprobs) == (
        ("x", "yy"),
        True,
        False,
        True,
    )
    assert 0 < order.deadline_ms <= 600_000


async def test_a_seed_is_drawn_when_none_is_given(shared: World) -> None:
    for _ in range(2):
        await shared.post("/v1/chat/completions", CHAT)
    first, second = shared.backend.scheduler.opened
    assert first.seed != second.seed


async def test_max_tokens_is_cut_to_the_context(shared: World) -> None:
    await shared.post("/v1/chat/completions", CHAT | {"max_tokens": 100_000})
    await shared.post("/v1/chat/completions", CHAT)
    assert [order.params.max_tokens for order in shared.backend.scheduler.opened] == [503, 503]


async def test_stop_strings_and_length(shared: World) -> None:
    stopped = (await shared.post("/v1/chat/completions", CHAT | {"stop": "wor"})).json()["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"], stopped["matched_stop"]) == (
        "Hello ",
        "stop",
        "wor",
    )
    cut = (await shared.post("/v1/chat/completions", CHAT | {"max_tokens": 3})).json()
    assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"]) == ("Hel", "length")
    assert cut["usage"]["completion_tokens"] == 3


async def test_unicode_survives_and_no_half_character_is_sent(shared: World) -> None:
    shared.backend.scheduler.script = Script(says=lambda order, child: "héllo 🌍🌏 ünï", step=1)
    chunks = events((await shared.post("/v1/chat/completions", CHAT | {"stream": True})).text)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "héllo 🌍🌏 ünï"
    assert not any("�" in text for text in texts)


async def test_chat_logprobs(shared: World) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 2}
    reply = (await shared.post("/v1/chat/completions", body)).json()["choices"][0]["logprobs"]
    assert [entry["token"] for entry in reply["content"]] == ["H", "e"]
    assert reply["content"][0]["bytes"] == [72]
    assert [top["token"] for top in reply["content"][0]["top_logprobs"]] == ["H", "I"]
    chunks = events((await shared.post("/v1/chat/completions", body | {"stream": True})).text)
    shown = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry["token"] for block in shown for entry in block["content"]] == ["H", "e"]


@pytest.mark.parametrize(
    ("prompt", "count"), [("one", 1), (["one", "two"], 2), ([111, 110, 101], 1), ([[111, 110], [116, 119, 111]], 2)]
)
async def test_completion_prompts(shared: World, prompt: Any, count: int) -> None:
    shared.backend.scheduler.script = Script(says=lambda order, child: bytes(order.ids[::4]).decode() + f"/{child}")
    body = {"model": MODEL, "prompt": prompt, "n": 2}
    reply = (await shared.post("/v1/completions", body)).json()
    assert [choice["index"] for choice in reply["choices"]] == list(range(2 * count))
    texts = [prompt] if count == 1 else prompt
    wanted = [text if isinstance(text, str) else bytes(text).decode() for text in texts]
    assert [c["text"] for c in reply["choices"]] == [f"{text}/{child}" for text in wanted for child in range(2)]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, wanted))
    streamed = events((await shared.post("/v1/completions", body | {"stream": True})).text)
    for index, choice in enumerate(reply["choices"]):
        mine = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == "stop"


async def test_echo_with_logprobs(shared: World) -> None:
    body = {"model": MODEL, "prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 2, "n": 2}
    for prompt in ("ab", [97, 98]):
        reply = (await shared.post("/v1/completions", body | {"prompt": prompt})).json()
        for choice in reply["choices"]:
            assert choice["text"] == "abHe"
            assert choice["logprobs"]["tokens"] == ["a", "b", "H", "e"]
            assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.25]
            assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
            assert choice["logprobs"]["top_logprobs"][1] == {"b": -0.25}
    streamed = events((await shared.post("/v1/completions", body | {"stream": True})).text)
    for index in range(2):
        mine = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in mine) == "abHe"
        assert [token for c in mine for token in c["logprobs"]["tokens"]] == ["a", "b", "H", "e"]


async def test_echo_of_the_prompt_alone(shared: World) -> None:
    body = {"model": MODEL, "prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = (await shared.post("/v1/completions", body)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25]


async def test_content_parts_and_template_variables(shared: World) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        "model": MODEL,
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None},
            {"role": "user", "content": parts, "name": "ann"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (await shared.post("/v1/chat/completions", body)).status_code == 200
    encoded = shared.backend.tokenizer.encoded[0]
    assert [(x.role, x.content, x.name) for x in encoded.messages] == [
        ("system", "be brief", ""),
        ("assistant", "", ""),
        ("user", "ab", "ann"),
    ]
    assert encoded.template_kwargs == '{"enable_thinking":false}'


async def test_models(shared: World) -> None:
    async with shared.client() as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get(f"/v1/models/{MODEL}")).json()
        missing = await client.get("/v1/models/other/model")
    assert listed["data"] == [one]
    assert (one["id"], one["max_model_len"]) == (MODEL, 512)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
