"""Somebody inside a service: hears what it hears as it comes, and speaks with its credentials, incarnations and sessions."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec

from phloem_proto.codec import pack_ids
from phloem_proto.subjects import Role, parse

from .forge import Forger, Forgery, Heard, leaves

KEPT = 64
"""Bodies remembered of each kind of link."""
AHEAD = 6
"""How far beyond the last number that was heard a frame may be: it is to be applied, not to be refused."""


class Insider:
    """Says what a role may say and no service of ours would: it may cost requests and links, never a process.

    Args:
        rng: the only source of chance.
        forger: changes messages, and knows what a role may say.
    """

    def __init__(self, rng: random.Random, forger: Forger) -> None:
        self._rng = rng
        self._forger = forger
        self._links: dict[Role, dict[str, Any]] = {role: {} for role in Role}
        self._bodies: dict[tuple[Role, Role], deque[bytes]] = {}
        self._said: set[bytes] = set()

    def hear(self, message: Heard) -> None:
        """Take note of a message that is not our own: of sessions, numbers, and what is said inside links."""
        if message.data in self._said:
            return
        tree = msgspec.msgpack.decode(message.data)
        if tree[2][0] != "LinkFrame":
            return
        address = parse(message.subject)
        self._links[address.sender][message.subject] = tree
        if tree[2][3]:
            self._bodies.setdefault((address.sender, address.to), deque(maxlen=KEPT)).append(tree[2][6])

    def say(self, role: Role) -> Forgery:
        """The next message: now a frame inside a link, now another one."""
        links = self._links[role]
        said = self._inside(role) if links and self._rng.random() < 0.5 else self._forger.misuse(role)
        self._said.add(said.data)
        return said

    def _inside(self, role: Role) -> Forgery:
        subject = self._rng.choice(list(self._links[role]))
        version, sender, frame = self._links[role][subject]
        body = self._body(self._rng.choice(self._bodies.get((role, parse(subject).to), deque([b""]))))
        seq = frame[3] + self._rng.randrange(AHEAD)
        data = msgspec.msgpack.encode([version, sender, [*frame[:3], seq, *frame[4:6], body, *frame[7:]]])
        return Forgery("inside", subject, data, None, True)

    def _body(self, body: bytes) -> bytes:
        match self._rng.randrange(16):
            case 0:
                return body
            case 1:
                return body[: self._rng.randrange(len(body) + 1)]
            case 2:
                return self._forger.changed(Heard("", body)) if body else body
        return self._plausible(body) if body else body

    def _plausible(self, body: bytes) -> bytes:
        """``body`` with some leaves of other values that could be true: it can be read, and does not fit."""
        tree = msgspec.msgpack.decode(body)
        for holder, key in self._rng.sample(places := leaves(tree), min(len(places), self._rng.randint(1, 3))):
            holder[key] = self._other(holder[key])
        return msgspec.msgpack.encode(tree)

    def _other(self, leaf: Any) -> Any:
        match leaf:
            case bool():
                return not leaf
            case int():
                return self._rng.choice((0, 1, leaf + 1, self._rng.randrange(300)))
            case float():
                return leaf + self._rng.random()
            case bytes():
                numbers = [
                    self._rng.choice((0, 1, 7, 255, 259, 2**31, 2**32 - 1)) for _ in range(self._rng.randrange(5))
                ]
                return self._rng.choice((b"", leaf[4:], leaf + leaf, leaf[1:], pack_ids(numbers)))
        return leaf
