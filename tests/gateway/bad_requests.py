"""Bad requests and what each gets: status, code and parameter. One table per surface; nothing of them may reach the scheduler."""

from __future__ import annotations

from typing import Any, NamedTuple

from .backend import CONTEXT, MODEL, VOCAB

USER = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": USER}
COMPLETION = {"model": MODEL, "prompt": "hi"}
GENERATE = {"text": "hi"}


class Bad(NamedTuple):
    """A body (an object to be encoded, or raw bytes) and its refusal."""

    name: str
    body: Any
    code: str
    param: str | None
    status: int = 400


def chat(name: str, code: str, param: str | None, status: int = 400, **fields: Any) -> Bad:
    return Bad(name, CHAT | fields, code, param, status)


def message(name: str, code: str, param: str, *messages: Any) -> Bad:
    return Bad(name, CHAT | {"messages": list(messages)}, code, param)


def schema(name: str, code: str, param: str, format: Any) -> Bad:
    return Bad(name, CHAT | {"response_format": format}, code, param)


VALUE, TYPE, MISSING, UNSUPPORTED = (
    "invalid_value",
    "invalid_type",
    "missing_required_parameter",
    "unsupported_parameter",
)
TOO_LONG = "context_length_exceeded"


def namespace_and_priority(body: dict[str, Any]) -> list[Bad]:
    """What all surfaces say alike: cache namespaces that are too long or no text, and priorities that are no 32-bit integers."""
    made = []
    for field in ("cache_salt", "extra_key"):
        for what, value, code in (
            ("long", "x" * 257, VALUE),
            ("number", 5, TYPE),
            ("list", ["x"], TYPE),
            ("boolean", True, TYPE),
        ):
            made.append(Bad(f"{field} {what}", body | {field: value}, code, field))
    for what, given, code in (
        ("2**31", 2**31, VALUE), ("-2**31", -(2**31), VALUE), ("2**70", 2**70, VALUE), ("5.0", 5.0, TYPE), ("2.5", 2.5, TYPE),
        ("1e20", 1e20, TYPE), ("true", True, TYPE), ("a string", "5", TYPE),
    ):  # fmt: skip
        made.append(Bad(f"priority {what}", body | {"priority": given}, code, "priority"))
    return made


CHATS = [
    Bad("empty body", b"", "invalid_json", None),
    Bad("cut off", b'{"model": "fake", "mess', "invalid_json", None),
    Bad("trailing comma", b'{"model": "fake",}', "invalid_json", None),
    Bad("not UTF-8", b'{"model": "\xff\xfe"}', "invalid_json", None),
    Bad("a list", b"[]", TYPE, None),
    Bad("a string", b'"hi"', TYPE, None),
    Bad("NaN", b'{"model": "fake", "messages": [], "temperature": NaN}', "invalid_json", None),
    Bad("nested too deeply", b'{"model": "fake", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "invalid_json", None),
    Bad("no model", {"messages": USER}, MISSING, "model"),
    Bad("no messages", {"model": MODEL}, MISSING, "messages"),
    chat("model is a number", TYPE, "model", model=5),
    chat("unknown model", "model_not_found", "model", 404, model="gpt-4"),
    chat("messages is a string", TYPE, "messages", messages="hi"),
    chat("no message at all", VALUE, "messages", messages=[]),
    message("a message that is a string", TYPE, "messages[0]", "hi"),
    message("no role", MISSING, "messages[0].role", {"content": "hi"}),
    message("unknown role", VALUE, "messages[0].role", {"role": "wizard", "content": "hi"}),
    message("no content", MISSING, "messages[0].content", {"role": "user"}),
    message("content is a number", TYPE, "messages[0].content", {"role": "user", "content": 5}),
    message("no parts", VALUE, "messages[0].content", {"role": "user", "content": []}),
    message("an image", "unsupported_value", "messages[0].content[0].type",
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}),
    message("audio", "unsupported_value", "messages[1].content[0].type", USER[0],
            {"role": "user", "content": [{"type": "input_audio"}]}),
    message("a text part without text", MISSING, "messages[0].content[0].text", {"role": "user", "content": [{"type": "text"}]}),
    Bad("a lone surrogate", CHAT | {"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_json", None),
    message("tool calls", UNSUPPORTED, "messages[0].tool_calls", {"role": "assistant", "tool_calls": [{"id": "x"}]}),
    message("longer than the context", TOO_LONG, "messages", {"role": "user", "content": "x" * CONTEXT}),
    chat("max_tokens 0", VALUE, "max_tokens", max_tokens=0),
    chat("max_tokens negative", VALUE, "max_tokens", max_tokens=-5),
    chat("max_tokens a string", TYPE, "max_tokens", max_tokens="5"),
    chat("max_tokens a fraction", TYPE, "max_tokens", max_tokens=5.5),
    chat("max_tokens a boolean", TYPE, "max_tokens", max_tokens=True),
    chat("max_tokens enormous", VALUE, "max_tokens", max_tokens=10**15),
    chat("max_completion_tokens 0", VALUE, "max_completion_tokens", max_completion_tokens=0),
    chat("min_tokens over max_tokens", VALUE, "min_tokens", min_tokens=9, max_tokens=8),
    chat("temperature too high", VALUE, "temperature", temperature=2.1),
    chat("temperature negative", VALUE, "temperature", temperature=-0.1),
    chat("temperature a string", TYPE, "temperature", temperature="hot"),
    chat("top_p 0", VALUE, "top_p", top_p=0),
    chat("top_p over 1", VALUE, "top_p", top_p=1.1),
    chat("top_k -2", VALUE, "top_k", top_k=-2),
    chat("min_p over 1", VALUE, "min_p", min_p=1.5),
    chat("frequency_penalty", VALUE, "frequency_penalty", frequency_penalty=3),
    chat("presence_penalty", VALUE, "presence_penalty", presence_penalty=-3),
    chat("repetition_penalty 0", VALUE, "repetition_penalty", repetition_penalty=0),
    chat("seed too large", VALUE, "seed", seed=2**63),
    chat("n 0", VALUE, "n", n=0),
    chat("n too large", VALUE, "n", n=9),
    chat("too many stops", VALUE, "stop", stop=["x"] * 17),
    chat("an empty stop", VALUE, "stop[1]", stop=["x", ""]),
    chat("an empty stop string", VALUE, "stop", stop=""),
    chat("a stop that is a number", TYPE, "stop[0]", stop=[5]),
    chat("a long stop", VALUE, "stop", stop="x" * 2000),
    chat("stop id out of range", VALUE, "stop_token_ids[0]", stop_token_ids=[VOCAB]),
    chat("logit_bias key no id", VALUE, "logit_bias", logit_bias={"x": 1}),
    chat("logit_bias id out of range", VALUE, "logit_bias", logit_bias={str(VOCAB): 1}),
    chat("logit_bias out of range", VALUE, "logit_bias.5", logit_bias={"5": 101}),
    chat("logit_bias a list", TYPE, "logit_bias", logit_bias=[1]),
    chat("logprobs a number", TYPE, "logprobs", logprobs=5),
    chat("top_logprobs without logprobs", VALUE, "top_logprobs", top_logprobs=3),
    chat("too many top_logprobs", VALUE, "top_logprobs", logprobs=True, top_logprobs=21),
    chat("stream a string", TYPE, "stream", stream="yes"),
    chat("stream_options without stream", VALUE, "stream_options", stream_options={"include_usage": True}),
    *namespace_and_priority(CHAT),
    chat("tools", UNSUPPORTED, "tools", tools=[{"type": "function"}]),
    chat("tool_choice", UNSUPPORTED, "tool_choice", tool_choice="required"),
    chat("audio output", UNSUPPORTED, "modalities", modalities=["text", "audio"]),
    chat("two grammars", "invalid_request", "regex", regex="a+", response_format={"type": "json_object"}),
    schema("format without type", MISSING, "response_format.type", {}),
    schema("unknown format", VALUE, "response_format.type", {"type": "xml"}),
    schema("structural_tag", UNSUPPORTED, "response_format.type", {"type": "structural_tag"}),
    schema("no json_schema", MISSING, "response_format.json_schema", {"type": "json_schema"}),
    schema("no schema", MISSING, "response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"name": "x"}}),
    schema("schema a list", TYPE, "response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"schema": []}}),
]  # fmt: skip


def completion(name: str, code: str, param: str | None, status: int = 400, **fields: Any) -> Bad:
    return Bad(name, COMPLETION | fields, code, param, status)


COMPLETIONS = [
    Bad("no prompt", {"model": MODEL}, MISSING, "prompt"),
    completion("empty prompt", VALUE, "prompt", prompt=""),
    completion("no prompts", VALUE, "prompt", prompt=[]),
    completion("prompt a number", TYPE, "prompt", prompt=5),
    completion("an empty one among prompts", VALUE, "prompt[1]", prompt=["a", ""]),
    completion("mixed prompts", TYPE, "prompt[1]", prompt=["a", [1]]),
    completion("prompts of objects", TYPE, "prompt[0]", prompt=[{}]),
    completion("token id out of range", VALUE, "prompt[1]", prompt=[1, VOCAB]),
    completion("token id negative", VALUE, "prompt[0]", prompt=[-1]),
    completion("token id a fraction", TYPE, "prompt[1]", prompt=[1, 2.5]),
    completion("token id in a list of lists", VALUE, "prompt[0][0]", prompt=[[VOCAB]]),
    completion("an empty list of ids", VALUE, "prompt[0]", prompt=[[]]),
    completion("ids longer than the context", TOO_LONG, "prompt", prompt=[1] * CONTEXT),
    completion("text longer than the context", TOO_LONG, "prompt", prompt="x" * CONTEXT),
    completion("too many choices", VALUE, "prompt", prompt=["a"] * 5, n=2),
    completion("too many logprobs", VALUE, "logprobs", logprobs=21),
    completion("logprobs a boolean", TYPE, "logprobs", logprobs=True),
    completion("max_tokens 0 without echo", VALUE, "max_tokens", max_tokens=0),
    completion("suffix", UNSUPPORTED, "suffix", suffix="end"),
    completion("best_of", UNSUPPORTED, "best_of", best_of=3),
    completion("lora", UNSUPPORTED, "lora_path", lora_path="x"),
    *namespace_and_priority(COMPLETION),
]


def generate(name: str, code: str, param: str | None, **fields: Any) -> Bad:
    return Bad(name, GENERATE | fields, code, param)


def params(name: str, code: str, param: str, **fields: Any) -> Bad:
    return Bad(name, GENERATE | {"sampling_params": fields}, code, f"sampling_params.{param}")


GENERATES = [
    Bad("neither text nor ids", {}, "invalid_request", "text"),
    generate("both", "invalid_request", "text", input_ids=[1]),
    generate("empty text", VALUE, "text", text=""),
    generate("no texts", VALUE, "text", text=[]),
    Bad("no ids", {"input_ids": []}, VALUE, "input_ids"),
    Bad("id out of range", {"input_ids": [VOCAB]}, VALUE, "input_ids[0]"),
    Bad("a batch with an id", {"input_ids": [[1], 2]}, TYPE, "input_ids[1]"),
    Bad("ids longer than the context", {"input_ids": [1] * (CONTEXT + 9)}, TOO_LONG, "input_ids"),
    generate("parameters of another length", VALUE, "sampling_params", text=["a", "b"], sampling_params=[{}]),
    generate("different n", VALUE, "sampling_params.n", text=["a", "b"], sampling_params=[{"n": 1}, {"n": 2}]),
    generate("the same rid twice", VALUE, "rid", text=["a", "b"], rid=["x", "x"]),
    generate("rids of another length", VALUE, "rid", text=["a", "b"], rid=["x"]),
    generate("image", UNSUPPORTED, "image_data", image_data="x"),
    generate("embeddings", UNSUPPORTED, "input_embeds", input_embeds=[[0.5]]),
    generate("logprob start", VALUE, "logprob_start_len", return_logprob=True, logprob_start_len=-2),
    generate("top logprobs", VALUE, "top_logprobs_num", return_logprob=True, top_logprobs_num=99),
    params("max_new_tokens", VALUE, "max_new_tokens", max_new_tokens=-1),
    params("max_new_tokens a string", TYPE, "max_new_tokens", max_new_tokens="x"),
    params("min_new_tokens", VALUE, "min_new_tokens", max_new_tokens=3, min_new_tokens=4),
    params("temperature", VALUE, "temperature", temperature=-1),
    params("top_p", VALUE, "top_p", top_p=0),
    params("stop", VALUE, "stop", stop=""),
    params("two grammars", "invalid_request", "regex", regex="a", json_schema="{}"),
    params("schema no JSON", VALUE, "json_schema", json_schema="{"),
    params("schema a number", TYPE, "json_schema", json_schema="5"),
    params("ebnf", UNSUPPORTED, "ebnf", ebnf="root ::= 'a'"),
    *namespace_and_priority(GENERATE),
]
