"""What is checked when a link opens. Pure functions."""

from __future__ import annotations

from phloem_proto.codec import PROTOCOL_MAX, PROTOCOL_MIN
from phloem_proto.messages import ErrorInfo, Hello, Profile

from .told import fits

_DIGESTS = ("model_digest", "tokenizer_digest", "sampler")


def mismatch(ours: Profile, theirs: Profile) -> str | None:
    """What two profiles disagree about, in words; None when they fit. Empty digests fit everything."""
    if not fits(theirs):
        return "profile too large"
    for name in _DIGESTS:
        our, their = getattr(ours, name), getattr(theirs, name)
        if our and their and our != their:
            return f"{name.replace('_', ' ')} differs: {our[:12]} here, {their[:12]} there"
    return None


def check_hello(hello: Hello, ours: Profile) -> ErrorInfo | None:
    """Whether a link may be opened at all, before the service is asked."""
    if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
        return ErrorInfo(
            "mismatch",
            f"protocol versions {hello.protocol_min} to {hello.protocol_max} there, {PROTOCOL_MIN} to {PROTOCOL_MAX} here",
        )
    difference = mismatch(ours, hello.profile)
    return ErrorInfo("mismatch", difference) if difference is not None else None
