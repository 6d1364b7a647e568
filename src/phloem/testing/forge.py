"""Hostile messages, drawn from what was heard on the bus: noise, cuts, flipped bits, replays, false senders, lengths, depths, numbers, tags.

What a holder of a role's credentials is entitled to say is left out: whoever has a gateway's password may cancel that gateway's requests, as
whoever has its memory may. Everything else is to change nothing. See `entitled`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from phloem_bus.told import believable
from phloem_proto import messages
from phloem_proto.codec import Codec, Envelope, Sender
from phloem_proto.senders import may_send
from phloem_proto.subjects import ALL, KV, Role, parse, replies

INBOXES: dict[Role, Any] = {
    Role.GATEWAY: messages.GatewayInbox,
    Role.TOKENIZER: messages.TokenizerInbox,
    Role.SCHEDULER: messages.SchedulerInbox,
    Role.WORKER: messages.WorkerInbox,
    Role.GRAMMAR: messages.GrammarInbox,
}
"""What each role takes."""
NUMBERS = (-1, 0, 1, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63))
REALS = (float("nan"), float("inf"), float("-inf"), -0.0, 1e308, -1e308, 5e-324)
FAR = 1 << 20
"""Frames ahead: no window reaches that far."""
_ACTS = (
    messages.Beat, messages.Goodbye, messages.Hello, messages.LinkFrame, messages.Live, messages.Cancel, messages.Lost, messages.Open,
    messages.OpenStream, messages.Flush, messages.Pin, messages.Unpin, messages.KvEvents, messages.Compile,
)  # fmt: skip
"""Messages that change something, or cost much."""


class Heard(NamedTuple):
    """A message as it was on the bus."""

    subject: str
    data: bytes
    reply: str | None = None


class Forgery(NamedTuple):
    """A message to be published.

    Attributes:
        kind: which of `KINDS`.
        allowed: whether a broker with our users lets it through.
    """

    kind: str
    subject: str
    data: bytes
    reply: str | None
    allowed: bool


class Forger:
    """Forges as somebody who has heard everything and holds the credentials of one role.

    Args:
        rng: the only source of chance.
        heard: what was on the bus; at least one message from each role.
        alive: who is there now.
    """

    def __init__(self, rng: random.Random, heard: Sequence[Heard], alive: Collection[Sender]) -> None:
        self._rng = rng
        self._heard = heard
        self._by_role = {role: [one for one in heard if parse(one.subject).sender is role] for role in Role}
        self._alive = {(sender.role, sender.instance): sender.incarnation for sender in alive}
        self._rids = sorted({rid for one in heard for rid in rids(one.data)})
        self._known = frozenset(self._rids)
        frames = [_tree(one.data)[2] for one in heard if _tag(one.data) == "LinkFrame"]
        self._frames = frames or [["LinkFrame", 1, 0, 0, 0, 0]]
        self._terms = {frame[1]: frame[2] for frame in frames}
        self._true = frozenset((parse(one.subject).sender, one.data) for one in heard)
        self._codecs: dict[Role, Codec[Any]] = {role: Codec(inbox) for role, inbox in INBOXES.items()}
        address = parse(heard[0].subject)
        self._root = f"ph.{address.namespace}.{address.model}"
        instances = [(Role(role), instance) for role, instance in self._alive]
        self._targets = itertools.cycle([*instances, *((role, ALL) for role in Role), (Role.GATEWAY, KV)])
        self._kinds = itertools.cycle(_MAKERS)

    def forge(self, role: Role) -> Forgery:
        """The next message of somebody with the credentials of ``role``. Every kind has its turn, and every target."""
        kind = next(self._kinds)
        while True:
            base = self._rng.choice(self._by_role[role])
            to, instance = next(self._targets)
            subject = f"{self._root}.{to}.{instance}.{role}"
            if kind == "replayed":
                to, subject = parse(base.subject).to, base.subject
            data = _MAKERS[kind](self, base)
            if kind in ("replayed", "moved") or not self.entitled(role, to, data):
                break
        if kind == "impersonated":
            other = self._rng.choice([other for other in Role if other is not role])
            subject = f"{self._root}.{to}.{instance}.{other}"
        return Forgery(kind, subject, data, self._reply(role), parse(subject).sender is role)

    def entitled(self, role: Role, to: Role, data: bytes) -> bool:
        """Whether ``role`` may say this to ``to``, so that it may have an effect: it is whole, of a kind that changes something, and not refused
        on its face (an unknown request, a session that is not this one, a number beyond any window)."""
        try:
            envelope = self._codecs[to].decode(data)
        except msgspec.DecodeError:
            return False
        sender, message = envelope.sender, envelope.message
        if sender.role != role or not may_send(role, type(message)) or not isinstance(message, _ACTS):
            return False
        if (role, data) in self._true:
            return False  # nothing but a replay, whose time is over
        match message:
            case messages.LinkFrame():
                if message.session not in self._terms:
                    return False
                mine = self._alive.get((sender.role, sender.instance)) == sender.incarnation
                fits = message.term == self._terms[message.session] and message.seq < FAR and message.ack < FAR
                return message.reset or (mine and fits)
            case messages.Beat():
                return believable(role, message)
            case messages.Goodbye() | messages.Live() | messages.KvEvents():
                return (sender.role, sender.instance) in self._alive
            case messages.Cancel():
                return message.rid in self._known
            case messages.Lost():
                return any(rid in self._known for rid in message.rids)
        return True

    def misuse(self, role: Role) -> Forgery:
        """Something that ``role`` is entitled to say and that no service of ours would.

        Left out is what would take the name of an instance for good: a goodbye, and a beat of another incarnation.
        """
        while True:
            base = self._rng.choice(self._by_role[role])
            to = parse(base.subject).to
            data = self.changed(base)
            if not self.entitled(role, to, data):
                continue
            envelope = self._codecs[to].decode(data)
            sender = envelope.sender
            true = self._alive.get((sender.role, sender.instance), sender.incarnation) == sender.incarnation
            if true and not isinstance(envelope.message, messages.Goodbye):
                return Forgery("misused", base.subject, data, None, True)

    def changed(self, base: Heard) -> bytes:
        """``base`` with one leaf of another value, another type, or another request's id."""
        return self._rng.choice((Forger._numbered, Forger._typed, Forger._of_others))(self, base)

    def _reply(self, role: Role) -> str | None:
        """Nowhere, to ourselves, or where the answer would be misused if it were given."""
        other = self._rng.choice(list(Role))
        heard = self._rng.choice(self._heard)
        return self._rng.choice(
            (None, f"{replies(role, 'forger')}.0.1", f"{replies(other, 'x')}.0.1", heard.reply, heard.subject, "_INBOX.*", "*", "a.>")
        )  # fmt: skip

    # --- Kinds --------------------------------------------------------------------------------------------------------------

    def _noise(self, _: Heard) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 1, 7, 64, 700, 9000)))

    def _truncated(self, base: Heard) -> bytes:
        return base.data[: self._rng.randrange(len(base.data))]

    def _flipped(self, base: Heard) -> bytes:
        data = bytearray(base.data)
        for _ in range(self._rng.randint(1, 6)):
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return bytes(data)

    def _replayed(self, base: Heard) -> bytes:
        return base.data

    def _sender(self, base: Heard) -> bytes:
        """Another name in the envelope: of another role, of an instance that is there, of one that can't be."""
        tree = _tree(base.data)
        there = self._rng.choice(
            [*self._alive, ("root", "x"), ("", ""), ("gateway", "*"), ("worker", "a.b"), ("grammar", ALL)]
        )
        tree[1] = [*there, self._rng.getrandbits(63)]
        return _bytes(tree)

    def _long(self, base: Heard) -> bytes:
        """A header that promises more than there is."""
        at = self._rng.randrange(len(base.data))
        header = self._rng.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"))
        return (
            base.data[:at] + header + self._rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")) + base.data[at + 1 :]
        )

    def _deep(self, base: Heard) -> bytes:
        """Brackets in brackets: in the place of a part, or after all of them, where a reader that knows no more fields skips them."""
        depth = self._rng.choice((64, 1000, 100_000))
        nest = self._rng.choice((b"\x91" * depth + b"\xc0", b"\x81\xa0" * depth + b"\xc0"))
        if self._rng.random() < 0.5:
            return b"\x94" + base.data[1:] + nest
        at = self._rng.randrange(1, len(base.data))
        return base.data[:at] + nest + base.data[at:]

    def _typed(self, base: Heard) -> bytes:
        return self._with(
            base, lambda _: self._rng.choice((None, True, "x" * 100, b"\0", [], {}, [[1]], 3.5, 7, {"a": 1}))
        )

    def _numbered(self, base: Heard) -> bytes:
        def change(leaf: Any) -> Any:
            return self._rng.choice(REALS if isinstance(leaf, float) else NUMBERS)

        return self._with(base, change, lambda leaf: isinstance(leaf, int | float) and not isinstance(leaf, bool))

    def _tagged(self, base: Heard) -> bytes:
        """A kind of message that there is not, or that another inbox takes."""
        tree = _tree(base.data)
        tree[2][0] = self._rng.choice(
            ("Shutdown", "", "beat", "Result", "Plan", "Text", "Encoded", "HelloReply", "Beat", 7, None)
        )
        return _bytes(tree)

    def _framed(self, base: Heard) -> bytes:
        """A frame of a link: of another session or term, or with numbers that no window holds."""
        tree = _tree(base.data)
        frame = list(self._rng.choice(self._frames))
        far = self._rng.choice((FAR, 2**32, 2**53, 2**63))
        match self._rng.randrange(4):
            case 0:
                frame[1] = self._rng.getrandbits(63)
            case 1:
                frame[2] += self._rng.choice((-1, 1, 1000))
            case 2:
                frame[3] = far
            case _:
                frame[4] = far
        return _bytes([tree[0], tree[1], frame])

    def _of_others(self, base: Heard) -> bytes:
        """The id of another request, or of none."""
        chosen = self._rng.choice([*self._rids, self._rng.randbytes(16), b"", bytes(10_000)])
        return self._with(base, lambda _: chosen, lambda leaf: isinstance(leaf, bytes) and len(leaf) == 16)

    def _with(self, base: Heard, change: Callable[[Any], Any], fits: Callable[[Any], bool] = lambda _: True) -> bytes:
        """``base`` with one leaf that ``fits`` changed; as it is if there is none."""
        tree = _tree(base.data)
        places = [place for place in leaves(tree) if fits(place[0][place[1]])]
        if places:
            holder, key = self._rng.choice(places)
            holder[key] = change(holder[key])
        return _bytes(tree)


_MAKERS: dict[str, Callable[[Forger, Heard], bytes]] = {
    "noise": Forger._noise,
    "truncated": Forger._truncated,
    "flipped": Forger._flipped,
    "replayed": Forger._replayed,
    "moved": Forger._replayed,
    "impersonated": Forger._replayed,
    "sender": Forger._sender,
    "long": Forger._long,
    "deep": Forger._deep,
    "typed": Forger._typed,
    "numbered": Forger._numbered,
    "tagged": Forger._tagged,
    "framed": Forger._framed,
    "of others": Forger._of_others,
}
KINDS = tuple(_MAKERS)


def sender_of(data: bytes) -> Sender:
    """Who sent a message that was heard. Raises ``msgspec.DecodeError``."""
    return _senders.decode(data).sender


_senders: msgspec.msgpack.Decoder[Envelope[Any]] = msgspec.msgpack.Decoder(Envelope[Any])


def rids(data: bytes) -> list[bytes]:
    """What in a message may be the id of a request: 16 bytes."""
    places = leaves(_tree(data))
    return [leaf for holder, key in places if isinstance(leaf := holder[key], bytes) and len(leaf) == 16]


def _tree(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def _bytes(tree: Any) -> bytes:
    return msgspec.msgpack.encode(tree)


def _tag(data: bytes) -> Any:
    return _tree(data)[2][0]


def leaves(tree: Any) -> list[tuple[Any, Any]]:
    """Each place of ``tree`` that holds something other than a list or a map, as (holder, key)."""
    found: list[tuple[Any, Any]] = []
    holders = [tree]
    while holders:
        holder = holders.pop()
        for key, value in enumerate(holder) if isinstance(holder, list) else list(holder.items()):
            if isinstance(value, list | dict):
                holders.append(value)
            else:
                found.append((holder, key))
    return found
