"""Range checks shared by all edges. Every failure is an `ApiError` that names the field as the client wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import limits
from .errors import ApiError
from .request import Sampling

_REQUEST_ID = re.compile(rf"[A-Za-z0-9._:/+=-]{{1,{limits.MAX_REQUEST_ID_CHARS}}}")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of the served model. 0 = not known (no peer has told yet): such a bound is not checked."""

    name: str
    context_length: int = 0
    vocab_size: int = 0


@dataclass(slots=True)
class Wishes:
    """Sampling values as a client gave them, types checked, None = not given. ``names`` maps a field to the client's word for it."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: Mapping[Any, float] | None = None
    seed: int | None = None
    n: int | None = None
    skip_special_tokens: bool | None = None
    include_stop: bool | None = None
    names: dict[str, str] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """The client's word for a field."""
        return self.names.get(key, key)


def is_request_id(text: str) -> bool:
    """Whether a client's ``x-request-id`` can stand in headers and log lines as it is; another is replaced."""
    return _REQUEST_ID.fullmatch(text) is not None


def invalid(param: str, expected: str, got: object = None) -> ApiError:
    """An ``invalid_value`` error for ``param``."""
    tail = "" if got is None else f", got {got!r}"
    return ApiError("invalid_value", f"Invalid value for '{param}': expected {expected}{tail}.", param=param)


def unsupported(param: str, what: str = "is not supported") -> ApiError:
    """An ``unsupported_parameter`` error for ``param``."""
    return ApiError("unsupported_parameter", f"'{param}' {what} by this server.", param=param)


def refuse(values: Iterable[tuple[str, object]]) -> None:
    """Raise for the first of (name, value) that asks for something this server knows of but can't do."""
    for name, value in values:
        if value is not None and value is not False and value not in ("", [], {}):
            raise unsupported(name)


def within(param: str, value: float | None, low: float, high: float, default: float, *, above: bool = False) -> float:
    """``value`` if it lies in [low, high] ((low, high] with ``above``), ``default`` for None."""
    if value is None:
        return default
    if not (low < value if above else low <= value) or not value <= high:
        bounds = (
            f"a number greater than {low:g} and at most {high:g}" if above else f"a number between {low:g} and {high:g}"
        )
        raise invalid(param, bounds, value)
    return value


def whole(param: str, value: int | None, low: int, high: int, default: int) -> int:
    """An integer in [low, high], ``default`` for None."""
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(param, f"an integer between {low} and {high}", value)
    return value


def token_ids(param: str, ids: Sequence[Any], facts: ModelFacts) -> tuple[int, ...]:
    """Ids, each a whole number of the vocabulary."""
    top = facts.vocab_size or 2**31
    for i, value in enumerate(ids):
        if type(value) is not int:
            raise ApiError(
                "invalid_type", f"Invalid type for '{param}[{i}]': expected a token id.", param=f"{param}[{i}]"
            )
        if not 0 <= value < top:
            raise invalid(f"{param}[{i}]", f"a token id between 0 and {top - 1}", value)
    return tuple(ids)


def prompt_ids(param: str, ids: Sequence[Any], facts: ModelFacts) -> tuple[int, ...]:
    """A prompt given as ids: not empty, no longer than the context, each in the vocabulary."""
    if not ids:
        raise invalid(param, "at least one token id")
    fits(param, len(ids), facts)
    return token_ids(param, ids, facts)


def fits(param: str, tokens: int, facts: ModelFacts) -> None:
    """Raise ``context_length_exceeded`` with both numbers if a prompt leaves no room for a token."""
    if facts.context_length and tokens >= facts.context_length:
        raise ApiError(
            "context_length_exceeded",
            f"This model's context length is {facts.context_length} tokens, but the prompt has {tokens} tokens"
            " and at least one must be left for the output.",
            param=param,
        )


def prompt_text(param: str, text: str) -> str:
    """A prompt given as text: not empty, and valid Unicode without lone surrogates."""
    if not text:
        raise invalid(param, "a prompt that is not empty")
    return unicode_text(param, text)


def unicode_text(param: str, text: str) -> str:
    """``text``, if it can travel as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(param, "valid Unicode text") from None
    return text


def sampling(wishes: Wishes, facts: ModelFacts, *, max_choices: int, least_tokens: int = 1) -> Sampling:
    """All sampling fields, checked.

    Args:
        max_choices: most choices of one request.
        least_tokens: least ``max_tokens`` that makes sense here.
    """
    name = wishes.name
    # First, since it may have become the default of max_tokens.
    min_tokens = whole(name("min_tokens"), wishes.min_tokens, 0, 2**31 - 1, 0)
    max_tokens = wishes.max_tokens
    if max_tokens is not None:
        max_tokens = whole(name("max_tokens"), max_tokens, least_tokens, 2**31 - 1, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(name("min_tokens"), f"at most {name('max_tokens')} ({max_tokens})", min_tokens)
    penalty = {
        key: within(name(key), getattr(wishes, key), -2.0, 2.0, 0.0)
        for key in ("frequency_penalty", "presence_penalty")
    }
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=within(name("temperature"), wishes.temperature, 0.0, 2.0, 1.0),
        top_p=within(name("top_p"), wishes.top_p, 0.0, 1.0, 1.0, above=True),
        top_k=top_k(name("top_k"), wishes.top_k),
        min_p=within(name("min_p"), wishes.min_p, 0.0, 1.0, 0.0),
        repetition_penalty=within(
            name("repetition_penalty"), wishes.repetition_penalty, limits.MIN_REPETITION_PENALTY, 2.0, 1.0
        ),
        stop=stops(name("stop"), wishes.stop),
        stop_token_ids=stop_ids(name("stop_token_ids"), wishes.stop_token_ids, facts),
        ignore_eos=bool(wishes.ignore_eos),
        logit_bias=logit_bias(name("logit_bias"), wishes.logit_bias, facts),
        seed=seed(name("seed"), wishes.seed),
        n=whole(name("n"), wishes.n, 1, max_choices, 1),
        skip_special_tokens=wishes.skip_special_tokens is not False,
        include_stop=bool(wishes.include_stop),
        **penalty,
    )


def top_k(param: str, value: int | None) -> int:
    """-1 (and 0, as many clients write it) = the whole vocabulary; else at least 1."""
    if value is None or value in (-1, 0):
        return -1
    if not 1 <= value <= 2**31 - 1:
        raise invalid(param, "-1 or a positive integer", value)
    return value


def seed(param: str, value: int | None) -> int | None:
    """A 64-bit signed seed, folded to 63 bits."""
    if value is None:
        return None
    whole(param, value, -limits.MAX_SEED - 1, limits.MAX_SEED, 0)
    return value & limits.MAX_SEED


def stops(param: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings: few, short, none of them empty."""
    if value is None:
        return ()
    many = (value,) if isinstance(value, str) else tuple(value)
    if len(many) > limits.MAX_STOPS:
        raise invalid(param, f"at most {limits.MAX_STOPS} stop strings", len(many))
    for i, text in enumerate(many):
        where = param if isinstance(value, str) else f"{param}[{i}]"
        if not text:
            raise invalid(where, "a string that is not empty")
        if len(text) > limits.MAX_STOP_CHARS:
            raise invalid(where, f"at most {limits.MAX_STOP_CHARS} characters", len(text))
        unicode_text(where, text)
    return many


def stop_ids(param: str, value: Sequence[int] | None, facts: ModelFacts) -> tuple[int, ...]:
    """Stop token ids of the vocabulary, few of them."""
    if value is None:
        return ()
    if len(value) > limits.MAX_STOP_IDS:
        raise invalid(param, f"at most {limits.MAX_STOP_IDS} token ids", len(value))
    return token_ids(param, value, facts)


def logit_bias(param: str, value: Mapping[Any, float] | None, facts: ModelFacts) -> tuple[tuple[int, float], ...]:
    """(id, bias) pairs in the order given, keys of the vocabulary, biases in [-100, 100]."""
    if not value:
        return ()
    if len(value) > limits.MAX_LOGIT_BIAS:
        raise invalid(param, f"at most {limits.MAX_LOGIT_BIAS} entries", len(value))
    top = facts.vocab_size or 2**31
    pairs = []
    for key, bias in value.items():
        text = str(key)
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < top):
            raise invalid(param, f"keys that are token ids between 0 and {top - 1}", text[:32])
        pairs.append((int(text), within(f"{param}.{text}", bias, -100.0, 100.0, 0.0)))
    return tuple(pairs)


def salt(param: str, value: str | None) -> str:
    """A cache salt or extra key; empty means none."""
    if not value:
        return ""
    if len(value) > limits.MAX_SALT_CHARS:
        raise invalid(param, f"at most {limits.MAX_SALT_CHARS} characters", len(value))
    return unicode_text(param, value)


def priority(param: str, value: int | None) -> int:
    """A 32-bit priority; larger is sooner."""
    return whole(param, value, -limits.MAX_PRIORITY, limits.MAX_PRIORITY, 0)
