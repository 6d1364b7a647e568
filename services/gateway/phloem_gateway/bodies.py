"""Request bodies as clients write them. Types only; ranges are in `checks`, meanings in ``parse_*``.

Unknown fields are ignored, as OpenAI-compatible servers do. Fields that exist elsewhere and would change the answer, but that this
server can't honour, are declared with type ``Any`` so that `checks.refuse` can name them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct):
    """What a stream carries besides its chunks."""

    include_usage: bool | None = None


class JsonSchemaFormat(msgspec.Struct):
    """``response_format.json_schema``. The schema's text is kept as the client wrote it."""

    schema: msgspec.Raw = msgspec.Raw()
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """``response_format``."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that chat and completions share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    ebnf: Any = None
    structural_tag: Any = None
    lora_path: Any = None
    session_id: Any = None
    session_params: Any = None
    stop_regex: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    use_beam_search: Any = None

    def unsupported(self) -> list[tuple[str, Any]]:
        """(name, value) of fields that can't be honoured."""
        names = (
            "ebnf", "structural_tag", "lora_path", "session_id", "session_params", "stop_regex", "custom_logit_processor",
            "return_hidden_states", "use_beam_search",
        )  # fmt: skip
        return [(name, getattr(self, name)) for name in names]


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text can be served."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class ChatBody(SamplingFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    prediction: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    continue_final_message: Any = None


class CompletionBody(SamplingFields, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: Any = None


class NativeSampling(msgspec.Struct, kw_only=True):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: Any = None
    structural_tag: Any = None
    stop_regex: Any = None
    custom_params: Any = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """``POST /generate``. Lists make a batch; then ``sampling_params`` may be a list of the same length."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: NativeSampling | list[NativeSampling] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    rid: str | list[str] | None = None
    model: str | None = None
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    token_ids_logprob: Any = None
    session_id: Any = None
    session_params: Any = None
    lora_path: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None

    def unsupported(self) -> list[tuple[str, Any]]:
        """(name, value) of fields that can't be honoured."""
        names = (
            "input_embeds", "image_data", "video_data", "audio_data", "token_ids_logprob", "session_id", "session_params",
            "lora_path", "custom_logit_processor", "return_hidden_states",
        )  # fmt: skip
        return [(name, getattr(self, name)) for name in names]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: a text, several, or a chat."""

    prompt: str | list[str] | None = None
    messages: list[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /detokenize``: ids, or several lists of them."""

    tokens: list[Any]
    model: str | None = None
    skip_special_tokens: bool | None = None
