"""Clients that go on: conversations side by side, and agents that fork."""

from __future__ import annotations

import itertools
import random
from array import array
from dataclasses import dataclass

from phloem_proto.codec import pack_ids

from .calls import Call, Timetable

VOCABULARY = 1 << 30
"""Token ids are drawn from so many: two texts that are drawn apart never begin with the same page."""


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversations that take turns: each turn's prompt is all that was said before it, and what the user adds."""

    conversations: int = 3
    turns: int = 20
    first_tokens: int = 512
    """Prompt of a conversation's first turn."""
    user_tokens: int = 64
    """What the user adds in each later turn."""
    answer_tokens: int = 128
    think_s: float = 0.0
    """From an answer's end to the next turn."""
    recorded: bool = False
    """All turns are known beforehand, answers included, and come at once, the first of each conversation first."""

    def __post_init__(self) -> None:
        if min(self.conversations, self.turns, self.first_tokens, self.user_tokens, self.answer_tokens) < 1:
            raise ValueError("conversations, turns and their tokens must be at least 1")
        if self.think_s < 0:
            raise ValueError("the time to think must not be negative")

    @property
    def tokens(self) -> int:
        """Tokens of a whole conversation."""
        return self.first_tokens + (self.turns - 1) * self.user_tokens + self.turns * self.answer_tokens


class Talking(Timetable):
    """The clients of a `Talk`."""

    def __init__(self, talk: Talk, seed: int) -> None:
        super().__init__()
        self._think_s = talk.think_s
        self._next: dict[Call, Call] = {}
        scripts = [_script(talk, random.Random(f"{seed}/{number}")) for number in range(talk.conversations)]
        for turn in range(talk.turns if talk.recorded else 1):
            for script in scripts:
                self.add(0.0, script[turn])
        if not talk.recorded:
            self._next = {call: after for script in scripts for call, after in itertools.pairwise(script)}

    def ended(self, call: Call, now: float) -> None:
        """See `calls.Clients`."""
        if (after := self._next.pop(call, None)) is not None:
            self.add(now + self._think_s, after)


def _script(talk: Talk, rng: random.Random) -> list[Call]:
    calls = [Call(pack_ids(drawn(rng, talk.first_tokens)), drawn(rng, talk.answer_tokens))]
    for _ in range(talk.turns - 1):
        user = pack_ids(drawn(rng, talk.user_tokens))
        calls.append(Call(calls[-1].text + user, drawn(rng, talk.answer_tokens)))
    return calls


@dataclass(frozen=True, slots=True)
class Fork:
    """Agents that begin with one trunk, and half-way fork once more. All of them work at the same time."""

    trunk_tokens: int = 2048
    forks: int = 8
    sub_forks: int = 2
    """Agents that each fork becomes after half of its turns."""
    turns: int = 6
    """From the trunk to an agent's last answer."""
    task_tokens: int = 64
    """What tells a fork from its siblings."""
    tool_tokens: int = 192
    """What a tool returns between two turns."""
    answer_tokens: int = 48
    """Half as many to one and a half times as many, drawn for each turn."""
    tool_s: float = 0.5
    """How long a tool takes."""

    def __post_init__(self) -> None:
        if min(self.trunk_tokens, self.forks, self.sub_forks, self.task_tokens, self.tool_tokens) < 1:
            raise ValueError("forks and their tokens must be at least 1")
        if self.turns < 2 or self.answer_tokens < 2 or self.tool_s < 0:
            raise ValueError("agents need 2 turns, answers of 2 tokens, and tools that take no negative time")

    @property
    def half(self) -> int:
        """Turns before the second fork."""
        return self.turns // 2


class Forking(Timetable):
    """The clients of a `Fork`."""

    def __init__(self, fork: Fork, seed: int) -> None:
        super().__init__()
        self._fork = fork
        self._rng = random.Random(f"{seed}/agents")
        self._after: dict[Call, list[Call]] = {}
        self.calls: list[Call] = []
        trunk = pack_ids(drawn(self._rng, fork.trunk_tokens))
        for _ in range(fork.forks):
            self.add(0.0, self._agent(trunk + pack_ids(drawn(self._rng, fork.task_tokens)), 1))

    def ended(self, call: Call, now: float) -> None:
        """See `calls.Clients`."""
        for after in self._after.pop(call, ()):
            self.add(now + self._fork.tool_s, after)

    def _agent(self, prompt: bytes, turn: int) -> Call:
        """The call of an agent's turn-th turn; those that follow are noted."""
        fork = self._fork
        length = self._rng.randint(fork.answer_tokens // 2, fork.answer_tokens * 3 // 2)
        call = Call(prompt, drawn(self._rng, length))
        self.calls.append(call)
        if turn < fork.turns:
            self._after[call] = [
                self._agent(call.text + pack_ids(drawn(self._rng, fork.tool_tokens)), turn + 1)
                for _ in range(fork.sub_forks if turn == fork.half else 1)
            ]
        return call


def drawn(rng: random.Random, count: int) -> array[int]:
    """So many token ids."""
    return array("I", (rng.randrange(VOCABULARY) for _ in range(count)))
