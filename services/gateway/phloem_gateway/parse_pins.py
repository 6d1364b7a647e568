"""``POST /pins`` and ``POST /pins/{id}``: bodies to wishes, everything checked before any work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from . import bodies, checks
from .chats import flatten
from .checks import ModelFacts
from .decode import decode
from .errors import ApiError
from .parse_openai import known_model
from .request import Generation, Sampling

MAX_TTL_S, DEFAULT_TTL_S = 3600.0, 300.0
"""Leases are for prompts that are about to be used; who wants one for longer renews it."""
MAX_PIN_CHARS = 128
"""Characters of a client's own pin id; it stands in paths, and in the scheduler as long as the lease."""


class PinBody(msgspec.Struct, kw_only=True):
    """``POST /pins``."""

    text: str | None = None
    input_ids: list[Any] | None = None
    messages: list[bodies.Message] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    ttl_s: float | None = None
    id: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    model: str | None = None


class RenewalBody(msgspec.Struct, kw_only=True):
    """``POST /pins/{id}``."""

    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class PinWish:
    """A checked lease: the prompt, as a generation of no tokens, and how long it is kept. ``ident`` None = to be drawn."""

    generation: Generation
    ttl_ms: int
    ident: str | None = None


def parse_pin(body: bytes, facts: ModelFacts) -> PinWish:
    """Read and check a ``POST /pins`` body. Raises `ApiError`."""
    wanted = decode(body, PinBody)
    known_model(wanted.model, facts)
    given = [name for name in ("text", "input_ids", "messages") if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise ApiError(
            "invalid_request", "Give exactly one of 'text', 'input_ids' and 'messages'.", param=(given or ["text"])[-1]
        )
    kwargs = wanted.chat_template_kwargs
    generation = prefill(
        given[0],
        text=None if wanted.text is None else checks.prompt_text("text", wanted.text),
        ids=None if wanted.input_ids is None else checks.prompt_ids("input_ids", wanted.input_ids, facts),
        messages=() if wanted.messages is None else flatten(wanted.messages),
        template_kwargs=msgspec.json.encode(kwargs).decode() if kwargs and wanted.messages else "",
        salt=checks.salt("cache_salt", wanted.cache_salt),
        extra=checks.salt("extra_key", wanted.extra_key),
    )
    return PinWish(generation, ttl_ms("ttl_s", wanted.ttl_s), None if wanted.id is None else pin_id(wanted.id))


def parse_renewal(body: bytes) -> int:
    """Read and check a ``POST /pins/{id}`` body; returns milliseconds. Raises `ApiError`."""
    return ttl_ms("ttl_s", decode(body, RenewalBody).ttl_s)


def prefill(name: str, **fields: Any) -> Generation:
    """A generation that only reads its prompt, which the client calls ``name``."""
    return Generation(Sampling(max_tokens=0), params={"ids": name, "texts": name, "messages": name}, **fields)


def ttl_ms(param: str, value: float | None) -> int:
    """A lease's time, given in seconds. Raises `ApiError`."""
    return round(1000 * checks.within(param, value, 1.0, MAX_TTL_S, DEFAULT_TTL_S))


def pin_id(value: str) -> str:
    """A client's own id of a lease. Raises `ApiError`."""
    if not (0 < len(value) <= MAX_PIN_CHARS and value.isprintable()):
        raise checks.invalid("id", f"1 to {MAX_PIN_CHARS} printable characters")
    return value
