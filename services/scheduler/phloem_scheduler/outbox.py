"""Frames on their way to detokenisers, gathered until the pass is over, and sent again when a request is re-routed.

Nothing is lost if a detokeniser is not linked: its frames are not kept here but made again from the choices, once it joins or the request
is opened elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phloem_proto.codec import pack_ids
from phloem_proto.messages import End, Output, TokenFrame

from .actions import SendOutput
from .requests import Choice, Request, Stage

# Most messages are far smaller; those after a re-route may not be. An eighth of what the bus carries leaves room for its envelopes.
MOST_BYTES = 1 << 20
FRAME_BYTES = 96
LOGPROB_BYTES = 24


class Outbox:
    """One Output for each detokeniser and pass."""

    def __init__(self) -> None:
        self.linked: dict[str, None] = {}  # detokenisers with a live link, in order of joining
        self._frames: dict[str, list[TokenFrame]] = {}

    def tokens(self, choice: Choice, count: int, end: End | None) -> None:
        """The last `count` output tokens of choice are new, and with `end` they were its last."""
        request = choice.request
        if request.detokeniser in self.linked:
            frame = self._frame(choice, len(choice.output) - count, end)
            self._frames.setdefault(request.detokeniser, []).append(frame)

    def resend(self, request: Request, offsets: Iterable[int | None]) -> None:
        """Send again, per choice, everything from this output offset on, and its end; None for a choice that needs nothing."""
        if request.detokeniser not in self.linked:
            return
        frames = self._frames.setdefault(request.detokeniser, [])
        for choice, offset in zip(request.choices, offsets, strict=True):
            if offset is not None and (offset < len(choice.output) or choice.stage is Stage.ENDED):
                frames.append(self._frame(choice, min(offset, len(choice.output)), choice.end))

    def withdraw(self, detokeniser: str) -> None:
        """Forget what was to go to a detokeniser that is gone, or under a route that no longer holds."""
        self._frames.pop(detokeniser, None)

    def drop(self, request: Request) -> None:
        """Take a request's frames out again: it was cancelled or re-routed in this pass."""
        frames = self._frames.get(request.detokeniser)
        if frames:
            self._frames[request.detokeniser] = [frame for frame in frames if frame.rid != request.rid]

    def take(self) -> list[SendOutput]:
        """What has gathered, as actions."""
        actions = [SendOutput(to, Output(part)) for to, frames in self._frames.items() for part in parts(frames)]
        self._frames = {}
        return actions

    def _frame(self, choice: Choice, offset: int, end: End | None) -> TokenFrame:
        request = choice.request
        first = offset == 0 and choice.child == 0
        return TokenFrame(
            rid=request.rid,
            attempt=request.attempt,
            child=choice.child,
            offset=offset,
            ids=pack_ids(choice.output[offset:]),
            end=end,
            logprobs=tuple(choice.logprobs[max(0, offset - choice.logprob_base) :]) if choice.logprobs else (),
            prompt_logprobs=tuple(choice.prompt_logprobs) if first else (),
            cached_tokens=max(0, request.cached_tokens),
        )


def weight(frame: TokenFrame) -> int:
    """About how many bytes frame takes in a message."""
    size = FRAME_BYTES + len(frame.ids)
    for entries in (frame.logprobs, frame.prompt_logprobs):
        if entries:
            size += LOGPROB_BYTES * (len(entries) + sum(len(entry.top) for entry in entries))
    return size


def parts(frames: list[TokenFrame]) -> Iterator[tuple[TokenFrame, ...]]:
    """frames in order, in runs of about MOST_BYTES at most."""
    part: list[TokenFrame] = []
    size = 0
    for frame in frames:
        size += weight(frame)
        if part and size > MOST_BYTES:
            yield tuple(part)
            part, size = [], weight(frame)
        part.append(frame)
    if part:
        yield tuple(part)
