"""One live request as the gateway sees it: what was asked, where it runs, and what has come back.

States: opening (an attempt is being made) -> open -> ended (every choice has its end). `Lost`, a gone detokeniser or a gone scheduler
moves it from open back to opening with a higher attempt; nothing moves it from ended.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from phloem_proto.codec import pack_ids
from phloem_proto.messages import End, Held, SamplingParams, TextFrame

from .admission import Ticket
from .request import Generation

FRAME_BYTES = 160
"""What a stored frame weighs beside its text and ids."""
LOGPROB_BYTES = 96
"""What one stored logprob entry or alternative weighs."""


@dataclass(slots=True)
class Child:
    """One choice. ``ids`` are kept to the end, so that it can be opened elsewhere."""

    ids: array[int] = field(default_factory=lambda: array("I"))
    end: End | None = None
    behind: int = 0
    """Reconciles in a row in which the scheduler had more of it than we."""
    behind_at: int = 0
    """How many ids we had at the first of them; when that changes, the count starts anew."""


@dataclass(slots=True)
class Live:
    """A request between its tokenising and its client's last byte. ``deadline`` and ``arrival`` are clock times in seconds."""

    rid: bytes
    generation: Generation
    prompt: bytes
    params: SamplingParams
    seed: int
    arrival: float
    deadline: float
    ticket: Ticket
    children: list[Child]
    attempt: int = 0
    detokeniser: str = ""
    scheduler: tuple[str, int] | None = None
    """Instance and incarnation that `Open` went to."""
    opening: bool = True
    lost_again: bool = False
    """Lost while opening: that attempt is void."""
    settled: bool = False
    """Scheduler and detokeniser have been told that we are done."""
    unknown: int = 0
    """Reconciles in a row in which the scheduler did not know this attempt."""
    first_token: float | None = None
    cached_tokens: int = -1
    """-1 until a frame told."""
    pending: list[TextFrame] = field(default_factory=list)
    """Frames that the client has not taken."""
    pending_bytes: int = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4

    @property
    def completion_tokens(self) -> int:
        return sum(len(child.ids) for child in self.children)

    @property
    def ended(self) -> bool:
        """Every choice has its end."""
        return all(child.end is not None for child in self.children)

    @property
    def held_bytes(self) -> int:
        """What an `Open` of it weighs: prompt and output ids."""
        return len(self.prompt) + 4 * self.completion_tokens

    def have(self) -> tuple[Held, ...]:
        """What we hold, for an `Open`; empty when that is nothing."""
        if not any(child.ids or child.end for child in self.children):
            return ()
        return tuple(Held(pack_ids(child.ids), child.end is not None) for child in self.children)

    def offsets(self) -> tuple[int, ...]:
        """Output tokens held per choice."""
        return tuple(len(child.ids) for child in self.children)

    def take(self) -> list[TextFrame]:
        """Frames for the client, in order; they are its now."""
        frames, self.pending, self.pending_bytes = self.pending, [], 0
        return frames

    def put(self, frame: TextFrame) -> None:
        """Store a frame for the client."""
        self.pending.append(frame)
        self.pending_bytes += weight(frame)


def weight(frame: TextFrame) -> int:
    """About how many bytes a stored frame holds, without a prompt's logprobs: they come once and all in one frame, so that their size says
    nothing of how fast the client reads."""
    logprobs = sum(1 + len(entry.top) for entry in frame.logprobs)
    return FRAME_BYTES + len(frame.ids) + len(frame.text) + LOGPROB_BYTES * logprobs
