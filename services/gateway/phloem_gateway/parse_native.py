"""``/generate``: SGLang's native form, one prompt or a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import bodies, checks, grammars
from .checks import ModelFacts, Wishes, invalid, refuse
from .decode import decode
from .errors import ApiError
from .limits import MAX_REQUEST_ID_CHARS, MAX_TOP_LOGPROBS
from .parse_openai import known_model
from .request import Generation

NATIVE_TOKENS = 128
"""Default ``max_new_tokens``."""

_NAMES = {
    "max_tokens": "sampling_params.max_new_tokens",
    "min_tokens": "sampling_params.min_new_tokens",
    "seed": "sampling_params.sampling_seed",
    "include_stop": "sampling_params.no_stop_trim",
    "json_schema": "sampling_params.json_schema",
}
_PLAIN = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop",
    "stop_token_ids", "ignore_eos", "logit_bias", "n", "skip_special_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A checked call. ``batch`` tells whether the reply is a list."""

    generations: tuple[Generation, ...]
    rids: tuple[str | None, ...]
    batch: bool
    stream: bool
    logprobs: bool
    text_in_logprobs: bool


def parse_generate(body: bytes, facts: ModelFacts, *, max_choices: int) -> NativeCall:
    """Read and check a ``/generate`` body. Raises `ApiError`."""
    wanted = decode(body, bodies.GenerateBody)
    known_model(wanted.model, facts)
    refuse(wanted.unsupported())
    prompts, batch = _prompts(wanted, facts)
    if len(prompts) > max_choices:
        raise invalid(
            "text" if wanted.text is not None else "input_ids", f"at most {max_choices} prompts", len(prompts)
        )
    params = _per_prompt(wanted.sampling_params, len(prompts), batch)
    generations = tuple(
        _generation(wanted, prompt, given, facts, max_choices) for prompt, given in zip(prompts, params, strict=True)
    )
    if len({g.sampling.n for g in generations}) > 1:
        raise ApiError(
            "invalid_value",
            "'sampling_params.n' must be the same for every prompt of a batch.",
            param="sampling_params.n",
        )
    if sum(g.sampling.n for g in generations) > max_choices:
        raise invalid("sampling_params.n", f"at most {max_choices} choices in all (prompts times n)")
    return NativeCall(
        generations=generations,
        rids=_rids(wanted.rid, len(prompts), batch),
        batch=batch or generations[0].sampling.n > 1,
        stream=bool(wanted.stream),
        logprobs=bool(wanted.return_logprob),
        text_in_logprobs=bool(wanted.return_text_in_logprobs),
    )


def _prompts(wanted: bodies.GenerateBody, facts: ModelFacts) -> tuple[list[str | tuple[int, ...]], bool]:
    if (wanted.text is None) == (wanted.input_ids is None):
        raise ApiError("invalid_request", "Give exactly one of 'text' and 'input_ids'.", param="text")
    if isinstance(wanted.text, str):
        return [checks.prompt_text("text", wanted.text)], False
    if wanted.text is not None:
        if not wanted.text:
            raise invalid("text", "at least one prompt")
        return [checks.prompt_text(f"text[{i}]", text) for i, text in enumerate(wanted.text)], True
    ids: list[Any] = wanted.input_ids or []
    if not ids or not isinstance(ids[0], list):
        return [checks.prompt_ids("input_ids", ids, facts)], False
    return [checks.prompt_ids(f"input_ids[{i}]", _as_list(i, item), facts) for i, item in enumerate(ids)], True


def _as_list(index: int, item: Any) -> list[Any]:
    if not isinstance(item, list):
        where = f"input_ids[{index}]"
        raise ApiError("invalid_type", f"Invalid type for '{where}': expected a list of token ids.", param=where)
    return item


def _per_prompt(
    given: bodies.NativeSampling | list[bodies.NativeSampling] | None, count: int, batch: bool
) -> list[bodies.NativeSampling]:
    if given is None:
        return [bodies.NativeSampling()] * count
    if isinstance(given, bodies.NativeSampling):
        return [given] * count
    if not batch or len(given) != count:
        raise invalid("sampling_params", f"one entry per prompt ({count})", len(given))
    return given


def _generation(
    wanted: bodies.GenerateBody,
    prompt: str | tuple[int, ...],
    given: bodies.NativeSampling,
    facts: ModelFacts,
    max_choices: int,
) -> Generation:
    refuse(
        (f"sampling_params.{key}", getattr(given, key))
        for key in ("ebnf", "structural_tag", "stop_regex", "custom_params")
    )
    wishes = Wishes(
        max_tokens=NATIVE_TOKENS if given.max_new_tokens is None else given.max_new_tokens,
        min_tokens=given.min_new_tokens,
        seed=given.sampling_seed,
        include_stop=given.no_stop_trim,
        names=_NAMES | {name: f"sampling_params.{name}" for name in _PLAIN},
        **{name: getattr(given, name) for name in _PLAIN},
    )
    grammar, grammar_name = grammars.one_of(
        given.json_schema, given.regex, False, {"json_schema": _NAMES["json_schema"], "regex": "sampling_params.regex"}
    )
    name = "text" if isinstance(prompt, str) else "input_ids"
    start, top = _logprobs(wanted)
    return Generation(
        sampling=checks.sampling(wishes, facts, max_choices=max_choices, least_tokens=0),
        text=prompt if isinstance(prompt, str) else None,
        ids=None if isinstance(prompt, str) else prompt,
        grammar=grammar,
        logprobs=top,
        prompt_logprobs=top if start >= 0 else -1,
        logprob_start=max(start, 0),
        salt=checks.salt("cache_salt", wanted.cache_salt),
        extra=checks.salt("extra_key", wanted.extra_key),
        priority=checks.priority("priority", wanted.priority),
        params={
            "ids": name,
            "texts": name,
            "messages": name,
            "grammar": grammar_name,
            "max_tokens": _NAMES["max_tokens"],
        },
    )


def _logprobs(wanted: bodies.GenerateBody) -> tuple[int, int]:
    """(first prompt position or -1, alternatives or -1)."""
    start = checks.whole("logprob_start_len", wanted.logprob_start_len, -1, 2**31 - 1, -1)
    top = checks.whole("top_logprobs_num", wanted.top_logprobs_num, 0, MAX_TOP_LOGPROBS, 0)
    return (start, top) if wanted.return_logprob else (-1, -1)


def _rids(given: str | list[str] | None, count: int, batch: bool) -> tuple[str | None, ...]:
    if given is None:
        return (None,) * count
    many = given if isinstance(given, list) else [given] if not batch else [f"{given}-{i}" for i in range(count)]
    if len(many) != count:
        raise invalid("rid", f"one id per prompt ({count})", len(many))
    if len(dict.fromkeys(many)) != count:
        raise ApiError("invalid_value", "'rid' holds the same id twice.", param="rid")
    for rid in many:
        if not 0 < len(rid) <= MAX_REQUEST_ID_CHARS:
            raise invalid("rid", f"1 to {MAX_REQUEST_ID_CHARS} characters per id", len(rid))
    return tuple(many)
