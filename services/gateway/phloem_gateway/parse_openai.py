"""``/v1/chat/completions`` and ``/v1/completions``: bodies to `Generation`s, everything checked before any work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from . import bodies, checks, grammars
from .chats import flatten
from .checks import ModelFacts, Wishes, invalid, refuse
from .decode import decode
from .errors import ApiError
from .limits import MAX_TOP_LOGPROBS
from .request import Generation, Sampling

COMPLETION_TOKENS = 16
"""Default ``max_tokens`` of completions, as OpenAI."""


@dataclass(frozen=True, slots=True)
class OpenAICall:
    """A checked call: what to generate and how to show it. Choice i*n + c is child c of generation i."""

    generations: tuple[Generation, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    echo: bool = False


def parse_chat(body: bytes, facts: ModelFacts, *, max_choices: int) -> OpenAICall:
    """Read and check a chat body. Raises `ApiError`."""
    chat = decode(body, bodies.ChatBody)
    _common(chat, facts)
    refuse((name, getattr(chat, name)) for name in (
        "tools", "functions", "function_call", "audio", "prediction", "web_search_options", "chat_template",
        "continue_final_message",
    ))  # fmt: skip
    if chat.tool_choice not in (None, "none", "auto"):
        raise checks.unsupported("tool_choice")
    if any(kind != "text" for kind in chat.modalities or ()):
        raise checks.unsupported("modalities", "other than ['text'] is not supported")
    wishes = _wishes(chat)
    if chat.max_completion_tokens is not None:
        wishes.max_tokens = chat.max_completion_tokens
        wishes.names["max_tokens"] = "max_completion_tokens"
    grammar, grammar_name = grammars.from_openai(chat.response_format, chat.regex)
    generation = Generation(
        sampling=checks.sampling(wishes, facts, max_choices=max_choices),
        messages=flatten(chat.messages),
        template_kwargs=""
        if not chat.chat_template_kwargs
        else msgspec.json.encode(chat.chat_template_kwargs).decode(),
        grammar=grammar,
        logprobs=_chat_logprobs(chat),
        salt=checks.salt("cache_salt", chat.cache_salt),
        extra=checks.salt("extra_key", chat.extra_key),
        priority=checks.priority("priority", chat.priority),
        params=_params("messages", grammar_name, wishes),
    )
    return OpenAICall((generation,), bool(chat.stream), _include_usage(chat), bool(chat.logprobs))


def parse_completion(body: bytes, facts: ModelFacts, *, max_choices: int) -> OpenAICall:
    """Read and check a completions body. Raises `ApiError`."""
    wanted = decode(body, bodies.CompletionBody)
    _common(wanted, facts)
    refuse([("suffix", wanted.suffix)])
    if wanted.best_of is not None and wanted.best_of != (wanted.n or 1):
        raise checks.unsupported("best_of", "other than 'n' is not supported")
    wishes = _wishes(wanted)
    wishes.max_tokens = COMPLETION_TOKENS if wanted.max_tokens is None else wanted.max_tokens
    if wanted.max_tokens is None and wanted.min_tokens is not None:
        wishes.max_tokens = max(COMPLETION_TOKENS, wanted.min_tokens)
    sampling = checks.sampling(wishes, facts, max_choices=max_choices, least_tokens=0 if wanted.echo else 1)
    grammar, grammar_name = grammars.from_openai(wanted.response_format, wanted.regex)
    logprobs = checks.whole("logprobs", wanted.logprobs, 0, MAX_TOP_LOGPROBS, -1)
    generations = tuple(
        Generation(
            sampling=sampling,
            text=prompt if isinstance(prompt, str) else None,
            ids=None if isinstance(prompt, str) else prompt,
            grammar=grammar,
            logprobs=logprobs,
            prompt_logprobs=logprobs if wanted.echo else -1,
            salt=checks.salt("cache_salt", wanted.cache_salt),
            extra=checks.salt("extra_key", wanted.extra_key),
            priority=checks.priority("priority", wanted.priority),
            params=_params("prompt", grammar_name, wishes),
        )
        for prompt in _prompts(wanted.prompt, sampling, facts, max_choices)
    )
    return OpenAICall(generations, bool(wanted.stream), _include_usage(wanted), logprobs >= 0, bool(wanted.echo))


def _common(body: bodies.ChatBody | bodies.CompletionBody, facts: ModelFacts) -> None:
    known_model(body.model, facts)
    refuse(body.unsupported())
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            "invalid_value", "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )


def known_model(model: str | None, facts: ModelFacts) -> None:
    """Raise ``model_not_found`` for any name but the served one (None = not given)."""
    if model is not None and model != facts.name:
        raise ApiError(
            "model_not_found",
            f"The model '{model[:128]}' does not exist here. This server serves '{facts.name}'.",
            param="model",
        )


def _include_usage(body: bodies.SamplingFields) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _wishes(body: bodies.SamplingFields) -> Wishes:
    same = (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "seed", "n", "skip_special_tokens",
    )  # fmt: skip
    return Wishes(include_stop=body.include_stop_str_in_output, **{name: getattr(body, name) for name in same})


def _params(prompt: str, grammar: str, wishes: Wishes) -> dict[str, str]:
    return {
        "ids": prompt,
        "texts": prompt,
        "messages": prompt,
        "grammar": grammar,
        "max_tokens": wishes.name("max_tokens"),
    }


def _chat_logprobs(chat: bodies.ChatBody) -> int:
    top = checks.whole("top_logprobs", chat.top_logprobs, 0, MAX_TOP_LOGPROBS, 0)
    if chat.top_logprobs and not chat.logprobs:
        raise ApiError("invalid_value", "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    return top if chat.logprobs else -1


def _prompts(
    prompt: str | list[Any], sampling: Sampling, facts: ModelFacts, max_choices: int
) -> Iterator[str | tuple[int, ...]]:
    """One prompt, or several: a string, strings, ids, or lists of ids."""
    if isinstance(prompt, str):
        yield checks.prompt_text("prompt", prompt)
        return
    if not prompt:
        raise invalid("prompt", "at least one prompt")
    if isinstance(prompt[0], int):
        yield checks.prompt_ids("prompt", prompt, facts)
        return
    if len(prompt) * sampling.n > max_choices:
        raise invalid("prompt", f"at most {max_choices} choices in all (prompts times 'n')", len(prompt) * sampling.n)
    for i, item in enumerate(prompt):
        where = f"prompt[{i}]"
        if isinstance(item, str) and isinstance(prompt[0], str):
            yield checks.prompt_text(where, item)
        elif isinstance(item, list) and isinstance(prompt[0], list):
            yield checks.prompt_ids(where, item, facts)
        else:
            raise ApiError(
                "invalid_type",
                f"Invalid type for '{where}': a prompt is a string, a list of strings, a list of token ids, or a list of such lists.",
                param=where,
            )
