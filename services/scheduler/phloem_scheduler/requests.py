"""The nouns of the scheduler: a request, its choices, and the stages a choice goes through.

    judging --judged--> waiting --picked--> running --retracted--> leaving --settled--> waiting
                                            running --dropped--> waiting      (its worker is gone)
    any of them --ended--> ended

A choice is what is scheduled: one of the n outputs of a request, with its own slot, output and end.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from phloem_proto.codec import pack_ids
from phloem_proto.messages import End, Grammar, GrammarSpec, SamplingParams, TokenLogprob

from .node import TOKEN_BYTES, Namespace, Node

if TYPE_CHECKING:
    from .rows import Row


class Stage(Enum):
    """Where a choice is in its life."""

    JUDGING = "judging"  # its grammar has no verdict yet; outside the queue
    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # has a slot
    LEAVING = "leaving"  # retracted: no slot any more, results of plans already sent still count
    ENDED = "ended"


LIFE: dict[tuple[Stage, str], Stage] = {
    (Stage.JUDGING, "judged"): Stage.WAITING,
    (Stage.WAITING, "picked"): Stage.RUNNING,
    (Stage.RUNNING, "retracted"): Stage.LEAVING,
    (Stage.RUNNING, "dropped"): Stage.WAITING,
    (Stage.LEAVING, "settled"): Stage.WAITING,
    (Stage.JUDGING, "ended"): Stage.ENDED,
    (Stage.WAITING, "ended"): Stage.ENDED,
    (Stage.RUNNING, "ended"): Stage.ENDED,
    (Stage.LEAVING, "ended"): Stage.ENDED,
}


class Choice:
    """One output of a request."""

    __slots__ = (
        "aside",
        "checked",
        "child",
        "end",
        "failed_steps",
        "logprob_base",
        "logprobs",
        "node",
        "output",
        "prompt_logprobs",
        "request",
        "retractions",
        "row",
        "stage",
        "stamp",
    )

    def __init__(self, request: Request, child: int, held: bytes = b"") -> None:
        self.request = request
        self.child = child
        self.stage = Stage.JUDGING
        self.output = array("I")
        self.output.frombytes(held)
        self.checked = not held  # held output is looked through for an end before the choice is planned
        self.end: End | None = None
        self.logprobs: list[TokenLogprob] = []  # of output[logprob_base:], if asked for
        self.logprob_base = len(self.output)
        self.prompt_logprobs: list[TokenLogprob] = []  # of positions params.logprob_start on, if asked for
        if self.wants_prompt_logprobs and request.params.logprob_start == 0:
            # Nothing predicts the first token, so no worker tells of it: its entry is made here.
            self.prompt_logprobs.append(TokenLogprob(int.from_bytes(request.ids[:TOKEN_BYTES], "little"), math.nan))
        self.row: Row | None = None  # the slot it has, or leaves
        self.node: Node | None = None  # where it hangs on the tree while it waits
        self.stamp = (
            0  # changes whenever it enters or leaves the order of waiting: tells valid heap entries from old ones
        )
        self.aside = False  # waits, but is not looked at for the rest of this pass
        self.failed_steps = 0
        self.retractions = 0

    @property
    def length(self) -> int:
        """Tokens known so far: prompt and committed output."""
        return self.request.prompt_tokens + len(self.output)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether it is this choice that computes the request's prompt logprobs (child 0 does)."""
        return self.child == 0 and self.request.params.prompt_logprobs >= 0

    @property
    def match_limit(self) -> int:
        """Most tokens that may come from the cache: one must be computed to draw from, and those whose logprobs are still owed."""
        limit = self.length - 1
        if self.wants_prompt_logprobs:
            owed_from = self.request.params.logprob_start + len(self.prompt_logprobs)
            if owed_from < self.request.prompt_tokens:
                limit = min(limit, max(owed_from - 1, 0))
        return limit

    def known(self) -> bytes:
        """Prompt and output as packed uint32 bytes."""
        return self.request.ids + pack_ids(self.output) if self.output else self.request.ids

    def packed(self, start: int, end: int) -> bytes:
        """Tokens start..end-1 of prompt and output as packed uint32 bytes."""
        prompt = self.request.prompt_tokens
        head = self.request.ids[start * TOKEN_BYTES : end * TOKEN_BYTES] if start < prompt else b""
        return head + pack_ids(self.output[max(0, start - prompt) : end - prompt]) if end > prompt else head

    def move(self, event: str) -> None:
        """Go to the stage that the table gives for this event; an event that has no place there is our mistake (KeyError)."""
        self.stage = LIFE[self.stage, event]


@dataclass(slots=True, eq=False)
class Request:
    """What a gateway opened."""

    rid: bytes
    attempt: int
    gateway: str
    detokeniser: str
    ids: bytes
    params: SamplingParams
    seed: int
    priority: int
    namespace: Namespace
    arrival: float  # when the client's request arrived, on our clock
    number: int  # order of opening: breaks ties of arrival
    deadline: float | None
    spec: GrammarSpec | None
    cached_tokens: int  # of the first pick; -1 = not picked yet
    stop_ids: frozenset[int]
    grammar: Grammar | None = None
    choices: list[Choice] = field(default_factory=list)
    told_from: list[int | None] = field(
        default_factory=list
    )  # per choice: first output token the gateway lacked when it opened
    missed: int = 0  # lists of live requests of its gateway, in a row, that did not have it
    done_at: float | None = None
    prompt_tokens: int = field(init=False)  # length of the prompt

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.ids) // TOKEN_BYTES

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.stage is Stage.ENDED for choice in self.choices)
