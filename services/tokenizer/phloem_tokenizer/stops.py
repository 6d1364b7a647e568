"""Stop strings over a growing text: found as early as possible, with nothing released that could belong to one.

The rule: the stop string that is *complete* first wins; of several that are complete at the same character, the longest.
(Waiting for one that started earlier but is not complete would mean generating on after a stop is there.) The text before
it is released, the stop and what follows are not. What is held back at any time is exactly the longest tail that is the
beginning of a stop string. One automaton (Aho and Corasick's) does both in one pass, whatever the number of strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from phloem_tokenizer.errors import Refused

# Bounds of what one request may make every one of its children carry; clients rarely have more than four short ones.
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 16_384  # all together


@dataclass(slots=True)
class _Node:
    """A state: some beginning of a stop string."""

    depth: int  # characters of it
    stop: int  # length of the longest stop string that ends here, 0 if none does
    next: dict[str, int]
    fall: int  # state of the longest proper suffix that is a beginning too


class StopSet:
    """The stop strings of a request; immutable, shared by its children.

    Raises Refused (param "stop") when there are too many, they are too long together, or one is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if len(stops) > MAX_STOPS:
            raise Refused("invalid_request", f"{len(stops)} stop strings; at most {MAX_STOPS}", "stop")
        if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
            raise Refused("invalid_request", f"stop strings exceed {MAX_STOP_CHARACTERS} characters in all", "stop")
        if "" in stops:
            raise Refused("invalid_request", "a stop string is empty", "stop")
        self._nodes = [_Node(0, 0, {}, 0)]
        for stop in stops:
            self._add(stop)
        self._link()

    def __bool__(self) -> bool:
        return len(self._nodes) > 1

    def step(self, state: int, character: str) -> int:
        """The state after one more character; amortised constant time."""
        nodes = self._nodes
        while state and character not in nodes[state].next:
            state = nodes[state].fall
        return nodes[state].next.get(character, 0)

    def held(self, state: int) -> int:
        """How many of the last characters may belong to a stop string that is not complete."""
        return self._nodes[state].depth

    def complete(self, state: int) -> int:
        """The length of the stop string that has just been completed, 0 if none."""
        return self._nodes[state].stop

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._nodes[state].next.get(character)
            if following is None:
                following = len(self._nodes)
                self._nodes.append(_Node(self._nodes[state].depth + 1, 0, {}, 0))
                self._nodes[state].next[character] = following
            state = following
        self._nodes[state].stop = len(stop)

    def _link(self) -> None:
        """Set `fall`, and pass on stops that end inside longer beginnings; shallow states first."""
        queue = deque(self._nodes[0].next.values())
        while queue:
            state = queue.popleft()
            node = self._nodes[state]
            for character, following in node.next.items():
                self._nodes[following].fall = self.step(node.fall, character)
                queue.append(following)
            node.stop = node.stop or self._nodes[node.fall].stop


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one more piece of text led to."""

    text: str  # released
    stop: str | None = None  # the stop string that is now complete; nothing is scanned after it


class StopScanner:
    """One growing text. `include_stop`: the stop string itself is released too."""

    def __init__(self, stops: StopSet, include_stop: bool = False) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._state = 0
        self._held = ""

    def push(self, text: str) -> Scanned:
        """Scan more text; not to be called again once a stop was returned."""
        if not self._stops or not text:
            return Scanned(text)
        stops, state = self._stops, self._state
        whole = self._held + text
        for at, character in enumerate(text, len(self._held) + 1):
            state = stops.step(state, character)
            length = stops.complete(state)
            if length:
                self._held = ""
                return Scanned(whole[: at if self._include_stop else at - length], whole[at - length : at])
        self._state = state
        cut = len(whole) - stops.held(state)
        self._held = whole[cut:]
        return Scanned(whole[:cut])

    def finish(self) -> str:
        """The text ends here: what was held back is released after all."""
        held, self._held, self._state = self._held, "", 0
        return held
