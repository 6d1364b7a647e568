"""Names on the bus: ``ph.<namespace>.<model>.<to role>.<instance>.<from role>``.

The last token is the role of the sender, so that a NATS user can be confined to publish as its own role only
(``ph.*.*.*.*.gateway``), and a receiver can tell a forged sender from a true one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

ALL = "all"
"""Instance token of a broadcast to every instance of a role."""
KV = "kv"
"""Instance token of the broadcast of cache events (`KvEvents`), to gateways that serve them and to routers that listen."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Role(StrEnum):
    """The five services, as they are called on the bus."""

    GATEWAY = "gateway"
    TOKENIZER = "tokenizer"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed subject."""

    namespace: str
    model: str
    to: Role
    instance: str
    sender: Role


def is_token(text: str) -> bool:
    """Whether ``text`` can stand as one token of a subject."""
    return _TOKEN.fullmatch(text) is not None


def slug(model: str) -> str:
    """A subject token for a model's name.

    Names made of letters, digits, ``_`` and ``-`` stay as they are; any other keeps its readable part and gets eight hex digits of
    its SHA-256, so that two names never share a token.
    """
    if is_token(model):
        return model
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", model).strip("-")[-40:]
    return f"{readable}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def subject(namespace: str, model: str, to: Role, instance: str, sender: Role) -> str:
    """The subject on which ``sender`` reaches ``instance`` (or ``ALL``) of role ``to``.

    Raises:
        ValueError: a part is not a subject token.
    """
    for part in (namespace, model, instance):
        if part != "*" and not is_token(part):
            raise ValueError(f"not a subject token: {part!r}")
    return f"ph.{namespace}.{model}.{to}.{instance}.{sender}"


def inbox(namespace: str, model: str, to: Role, instance: str) -> str:
    """The pattern an instance subscribes to: everything sent to it, from any role."""
    return f"ph.{namespace}.{model}.{to}.{instance}.*"


def replies(role: Role, instance: str) -> str:
    """The prefix of the subjects that replies to an instance come to. The broker lets no other role listen there."""
    return f"_INBOX_{role}.{instance}"


def may_reply(subject: str, role: str) -> bool:
    """Whether ``subject`` can be one where ``role`` waits for replies.

    The broker lets whoever was asked answer on the subject that came with the question, whatever it is: a caller that names another than its
    own would have us speak, with our permission, where it may not. ``_INBOX.`` is what brokers without users are used with.
    """
    tokens = subject.split(".")
    return len(tokens) > 1 and tokens[0] in (f"_INBOX_{role}", "_INBOX") and all(map(is_token, tokens[1:]))


def parse(text: str) -> Address:
    """Read a subject back.

    Raises:
        ValueError: it is not one of ours.
    """
    parts = text.split(".")
    if len(parts) != 6 or parts[0] != "ph":
        raise ValueError(f"not a Phloem subject: {text!r}")
    return Address(parts[1], parts[2], Role(parts[3]), parts[4], Role(parts[5]))
