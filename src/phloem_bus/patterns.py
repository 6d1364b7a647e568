"""Subjects and patterns as NATS has them."""

from __future__ import annotations

import re
from functools import lru_cache

_PLAIN = re.compile(r"[^\x00-\x20\x7f-\U0010ffff\"\\*>]+")
"""A token without wildcards. What a server would escape in its errors is left out: a refusal must be known by its subject."""


def matches(pattern: tuple[str, ...], tokens: tuple[str, ...]) -> bool:
    """Whether a subject matches a pattern, both split at dots: ``*`` is one token, a last ``>`` one or more."""
    if pattern[-1] == ">":
        head = pattern[:-1]
        return len(tokens) >= len(pattern) and all(p in ("*", t) for p, t in zip(head, tokens, strict=False))
    return len(pattern) == len(tokens) and all(p in ("*", t) for p, t in zip(pattern, tokens, strict=True))


@lru_cache(maxsize=256)  # the same few again and again; those of replies are used once, and must not pile up
def check_subject(subject: str, *, wildcards: bool) -> tuple[str, ...]:
    """Split a subject at its dots. Its tokens are of visible ASCII without quotes and backslashes.

    Raises:
        ValueError: it is no subject, or has wildcards where none may be.
    """
    tokens = tuple(subject.split("."))
    for position, token in enumerate(tokens):
        plain = _PLAIN.fullmatch(token) is not None
        wild = wildcards and (token == "*" or (token == ">" and position == len(tokens) - 1))
        if not (plain or wild):
            raise ValueError(f"not a subject: {subject!r}")
    return tokens
