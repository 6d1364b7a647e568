"""What a beat may say. Peers keep it, show it and pass it on, so that one who was taken over could fill theirs with it, or speak of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from phloem_proto.messages import Beat, Load, Profile
from phloem_proto.subjects import Role

T = TypeVar("T")

STATES = ("starting", "ready", "draining")
MOST_COUNTERS = 512
"""Several times what a scheduler tells for itself and those below it."""
MOST_TEXT = 512
"""Characters of a name or digest."""
MOST_EOS = 1024
MOST = 1e18
"""Of a counter."""
_FAR = 2**53
_NAME = re.compile(r"phloem_([a-z]+)_[a-z0-9_]{1,96}")
_SPEAKS_FOR: dict[str, tuple[str, ...]] = {
    Role.TOKENIZER: ("tokenizer",),
    Role.SCHEDULER: ("scheduler", "worker", "grammar"),
    Role.WORKER: ("worker",),
    Role.GRAMMAR: ("grammar",),
}
"""Whose metrics a role tells in its beats; gateways tell none."""


def believable(role: str, beat: Beat) -> bool:
    """Whether somebody of ``role`` that keeps to the protocol could have sent ``beat``."""
    return beat.state in STATES and fits(beat.profile) and _plain(beat.load) and _counts(role, beat.load.counters)


def fits(profile: Profile) -> bool:
    """Whether a profile is of the size that profiles have."""
    parts: list[msgspec.Struct] = [profile]
    if profile.worker is not None:
        if len(profile.worker.eos_ids) > MOST_EOS:
            return False
        parts.append(profile.worker)
    return all(len(text) <= MOST_TEXT for part in parts for text in _of_kind(part, str))


def _plain(load: Load) -> bool:
    return all(-_FAR <= number <= _FAR for number in _of_kind(load, int))


def _counts(role: str, counters: dict[str, float]) -> bool:
    own = _SPEAKS_FOR.get(role, ())
    return len(counters) <= MOST_COUNTERS and all(
        (name := _NAME.fullmatch(text)) is not None and name[1] in own and -MOST <= value <= MOST
        for text, value in counters.items()
    )


def _of_kind(part: msgspec.Struct, kind: type[T]) -> Iterable[T]:
    return (value for name in part.__struct_fields__ if isinstance(value := getattr(part, name), kind))
