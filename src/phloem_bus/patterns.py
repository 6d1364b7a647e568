"""Subjects and patterns as NATS has them."""

from __future__ import annotations

from functools import lru_cache


def matches(pattern: tuple[str, ...], tokens: tuple[str, ...]) -> bool:
    """Whether a subject matches a pattern, both split at dots: ``*`` is one token, a last ``>`` one or more."""
    if pattern[-1] == ">":
        head = pattern[:-1]
        return len(tokens) >= len(pattern) and all(p in ("*", t) for p, t in zip(head, tokens, strict=False))
    return len(pattern) == len(tokens) and all(p in ("*", t) for p, t in zip(pattern, tokens, strict=True))


@lru_cache(maxsize=4096)  # the same few subjects again and again
def check_subject(subject: str, *, wildcards: bool) -> tuple[str, ...]:
    """Split a subject at its dots.

    Raises:
        ValueError: it is no subject, or has wildcards where none may be.
    """
    tokens = tuple(subject.split("."))
    for position, token in enumerate(tokens):
        plain = token and not any(c.isspace() for c in token) and "*" not in token and ">" not in token
        wild = wildcards and (token == "*" or (token == ">" and position == len(tokens) - 1))
        if not (plain or wild):
            raise ValueError(f"not a subject: {subject!r}")
    return tokens
