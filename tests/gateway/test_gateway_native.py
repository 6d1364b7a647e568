"""``/generate``, ``/tokenize``, ``/detokenize``, ``/flush_cache``."""

from __future__ import annotations

import itertools

import anyio
import pytest

import phloem_gateway.texts as texts_module
from phloem_proto.messages import End, ErrorInfo

from .backend import MODEL, Script
from .world import World, events

pytestmark = pytest.mark.anyio


async def test_one_prompt(shared: World) -> None:
    shared.backend.scheduler.script = Script(cached=2)
    reply = (
        await shared.post("/generate", {"text": "hey", "rid": "mine", "sampling_params": {"max_new_tokens": 5}})
    ).json()
    meta = reply["meta_info"]
    assert (reply["text"], reply["output_ids"]) == ("Hello", [72, 101, 108, 108, 111])
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("mine", 3, 5, 2)
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert "output_token_logprobs" not in meta


async def test_ids_stop_string_and_end_of_sequence(shared: World) -> None:
    stopped = await shared.post(
        "/generate", {"input_ids": [1, 2], "sampling_params": {"stop": "wor", "no_stop_trim": True}}
    )
    assert stopped.json()["text"] == "Hello wor"
    assert stopped.json()["meta_info"]["finish_reason"] == {"type": "stop", "matched": "wor"}
    ended = (await shared.post("/generate", {"input_ids": [1, 2]})).json()
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    assert shared.backend.scheduler.opened[1].params.max_tokens == 128
    assert shared.backend.tokenizer.encoded == []


async def test_a_batch_keeps_its_order_and_parameters(shared: World) -> None:
    shared.backend.scheduler.script = Script(says=lambda order, child: bytes(order.ids[::4]).decode())
    body = {
        "text": ["first", "second"],
        "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 9}],
        "rid": ["a", "b"],
    }
    replies = (await shared.post("/generate", body)).json()
    assert [reply["text"] for reply in replies] == ["fir", "second"]
    assert [reply["meta_info"]["id"] for reply in replies] == ["a", "b"]
    assert len(shared.backend.tokenizer.encoded) == 1


async def test_n_makes_a_list(shared: World) -> None:
    replies = (await shared.post("/generate", {"text": "x", "sampling_params": {"n": 2}})).json()
    assert [reply["index"] for reply in replies] == [0, 1]


async def test_a_stream_carries_the_text_so_far(shared: World) -> None:
    shown = events((await shared.post("/generate", {"text": "x", "stream": True})).text)
    texts = [item["text"] for item in shown]
    assert texts[-1] == "Hello world"
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert [item["meta_info"]["finish_reason"] for item in shown[:-1]] == [None] * (len(shown) - 1)
    assert shown[-1]["meta_info"]["completion_tokens"] == 11


async def test_logprobs(shared: World) -> None:
    body = {
        "text": "abc", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True,
        "sampling_params": {"max_new_tokens": 2},
    }  # fmt: skip
    meta = (await shared.post("/generate", body)).json()["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 97, "a"], [-0.25, 98, "b"], [-0.25, 99, "c"]]
    assert meta["output_token_logprobs"] == [[-0.25, 72, "H"], [-0.25, 101, "e"]]
    assert meta["output_top_logprobs"][0] == [[-0.25, 72, "H"], [-0.5, 73, "I"]]
    plain = await shared.post(
        "/generate", {"text": "abc", "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    )
    meta = plain.json()["meta_info"]
    assert (meta["input_token_logprobs"], meta["output_token_logprobs"]) == ([], [[-0.25, 72, None]])
    params = shared.backend.scheduler.opened[1].params
    assert (params.logprobs, params.prompt_logprobs) == (0, -1)
    later = await shared.post("/generate", body | {"logprob_start_len": 2})
    assert later.json()["meta_info"]["input_token_logprobs"] == [[-0.25, 99, "c"]]


async def test_prefill_only(shared: World) -> None:
    reply = (await shared.post("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 0}})).json()
    assert (reply["text"], reply["meta_info"]["completion_tokens"]) == ("", 0)


async def test_an_abort_is_a_finish_reason(shared: World) -> None:
    shared.backend.scheduler.script = Script(end=End("abort", code="aborted", message="aborted by an operator"))
    reply = (await shared.post("/generate", {"text": "abc"})).json()
    assert reply["meta_info"]["finish_reason"] == {"type": "abort", "message": "aborted by an operator"}


async def test_both_halves_of_the_cache_namespace_reach_the_scheduler(shared: World) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    for path, body in (
        ("/generate", {"text": "x"}),
        ("/v1/completions", {"model": MODEL, "prompt": "x"}),
        ("/v1/chat/completions", chat),
    ):
        for names in (
            {"cache_salt": "tenant"},
            {"extra_key": "a" * 256},
            {"cache_salt": "s", "extra_key": "e"},
            {"cache_salt": ""},
        ):
            assert (await shared.post(path, body | names)).status_code == 200
    seen = [(order.salt, order.extra) for order in shared.backend.scheduler.opened]
    assert seen == [("tenant", ""), ("", "a" * 256), ("s", "e"), ("", "")] * 3


async def test_tokenize_and_detokenize(shared: World) -> None:
    assert (await shared.post("/tokenize", {"prompt": "hé"})).json() == {
        "tokens": [104, 195, 169],
        "count": 3,
        "max_model_len": 512,
    }
    many = (await shared.post("/tokenize", {"prompt": ["a", "bc"], "add_special_tokens": False})).json()
    assert (many["tokens"], many["count"]) == ([[97], [98, 99]], [1, 2])
    assert shared.backend.tokenizer.encoded[1].add_special_tokens is False
    chat = await shared.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})
    assert bytes(chat.json()["tokens"]) == b"<user>x\n"
    assert (await shared.post("/detokenize", {"tokens": [104, 195, 169]})).json() == {"text": "hé"}
    assert (await shared.post("/detokenize", {"tokens": [[104], [105]]})).json() == {"text": ["h", "i"]}


async def test_a_burst_that_tokenizers_would_refuse_waits_its_turn(shared: World) -> None:
    tokenizer = shared.backend.tokenizer
    tokenizer.encode_hold = anyio.Event()
    answers: dict[int, int] = {}

    async def ask(number: int) -> None:
        response = await shared.post("/tokenize", {"prompt": f"{number:03d}"})
        answers[number] = response.status_code

    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(ask, number)
        await shared.until(lambda: bool(tokenizer.encoded))
        tokenizer.encode_hold.set()
    assert answers == dict.fromkeys(range(200), 200)
    assert [call.texts[0] for call in tokenizer.encoded] == [f"{number:03d}" for number in range(200)]


async def test_a_tokenizer_that_others_keep_busy_for_a_moment_is_asked_again(shared: World) -> None:
    tokenizer = shared.backend.tokenizer
    tokenizer.refuse_encode = ErrorInfo("busy", "others call it too", retry_after_ms=1000)

    async def ask() -> None:
        assert (await shared.post("/tokenize", {"prompt": "x"})).status_code == 200

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await shared.until(lambda: len(tokenizer.encoded) == 3)
        tokenizer.refuse_encode = None


async def test_who_finds_tokenizers_busy_for_good_is_told_so(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "BUSY_S", 0.2)
    shared.backend.tokenizer.refuse_encode = ErrorInfo("busy", "others call it too", retry_after_ms=1000)
    response = await shared.post("/tokenize", {"prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": []}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [5000]}, "tokens[0]"),
        ("/detokenize", {"tokens": [[1], 2]}, "tokens[1]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_bad_tokenize_requests(shared: World, path: str, body: dict[str, object], param: str) -> None:
    response = await shared.post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_flush_cache(shared: World) -> None:
    scheduler = shared.backend.scheduler
    async with shared.client() as client:
        assert (await client.post("/flush_cache")).json() == {"flushed_pages": 5}
        assert (await client.get("/flush_cache?timeout=1.5")).status_code == 200
        assert [flush.timeout_ms for flush in scheduler.flushes] == [0, 1500]
        for bad in ("x", "-1", "nan", "1e9"):
            assert (await client.get(f"/flush_cache?timeout={bad}")).json()["error"]["param"] == "timeout"
        scheduler.refuse_flush = ErrorInfo("busy", "busy")
        refused = await client.post("/flush_cache")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_idle")
