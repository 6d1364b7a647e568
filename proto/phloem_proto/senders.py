"""Who has what to say. The broker sees to it that a sender has the role which its subject names; this says what that role may send.

Without it a grammar service that was taken over, which knows the rids of requests, could cancel them or read the tree in a gateway's stead.
"""

from __future__ import annotations

from . import messages
from .messages import Message
from .subjects import Role

_ANYBODY = frozenset(Role)
_GATEWAY = frozenset({Role.GATEWAY})
_SCHEDULER = frozenset({Role.SCHEDULER})

SENDERS: dict[type[Message], frozenset[Role]] = {
    messages.Beat: _ANYBODY,
    messages.Goodbye: _ANYBODY,
    messages.Probe: _ANYBODY,
    messages.Hello: frozenset({Role.SCHEDULER, Role.TOKENIZER}),
    messages.LinkFrame: _ANYBODY - {Role.GRAMMAR},
    messages.Encode: _GATEWAY,
    messages.Detokenize: _GATEWAY,
    messages.OpenStream: _GATEWAY,
    messages.Open: _GATEWAY,
    messages.Cancel: _GATEWAY,
    messages.Live: _GATEWAY,
    messages.Flush: _GATEWAY,
    messages.Pin: _GATEWAY,
    messages.Unpin: _GATEWAY,
    messages.Pins: _GATEWAY,
    messages.Radix: _GATEWAY,
    messages.KvWatch: _GATEWAY,
    messages.KvEvents: _SCHEDULER,
    messages.Lost: frozenset({Role.SCHEDULER, Role.TOKENIZER}),
    messages.Compile: _SCHEDULER,
}
"""Of everything that an inbox takes. What is said inside links is up to those who opened them."""


def may_send(role: str, kind: type[Message]) -> bool:
    """Whether messages of ``kind`` may come from ``role``."""
    return role in SENDERS.get(kind, ())
