"""A worker that has no model: it answers plans with the tokens that a script has for them, each after the time it costs."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Plan, Result, SlotOpen, WorkerProfile

from .cost import Cost

SLOTS = 1024
"""More than any workload has rows at once."""
STEP_TOKENS = 16_384
"""Longest plan: the scheduler's own budget is what bounds a step here."""


def profile(pages: int, page_size: int) -> WorkerProfile:
    """What the device says of itself: any token id is in its vocabulary, and only its pages limit a sequence."""
    return WorkerProfile(page_size, pages, SLOTS, STEP_TOKENS, 1 << 31, 1 << 32, (), "none", "simulated")


@dataclass(slots=True)
class _Slot:
    opened: SlotOpen
    known: int  # tokens that came with it
    filled: int  # tokens whose KV is there
    drawn: int  # output tokens so far


class Device:
    """Runs plans one after another on the simulation's clock (seconds).

    Args:
        answer: the output that a request (by rid) is to yield.
    """

    def __init__(self, cost: Cost, answer: Callable[[bytes], array[int]]) -> None:
        self.prompt_tokens = 0  # computed so far, those computed again included
        self.steps = 0
        self._cost = cost
        self._answer = answer
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[Plan] = deque()
        self._running: tuple[float, Result] | None = None

    @property
    def done_at(self) -> float | None:
        """When the step that runs is over; None if none runs."""
        return None if self._running is None else self._running[0]

    def send(self, plan: Plan, now: float) -> None:
        """plan arrives; it starts at once if nothing else runs."""
        self._queue.append(plan)
        if self._running is None:
            self._start(now)

    def finish(self) -> Result:
        """The result of the step that is over now; the next one starts. `done_at` must not be None."""
        assert self._running is not None
        now, result = self._running
        self._running = None
        if self._queue:
            self._start(now)
        return result

    def _start(self, now: float) -> None:
        result = self._run(self._queue.popleft())
        self._running = now + result.forward_ms / 1e3, result

    def _run(self, plan: Plan) -> Result:
        for number in unpack_ids(plan.closes):
            del self._slots[number]
        for opened in plan.opens:
            known = len(opened.ids) // 4
            self._slots[opened.slot] = _Slot(opened, known, opened.committed, known - opened.prompt_tokens)
        yields, ids = bytearray(), array("I")
        prompt_tokens = decode_rows = context = 0
        for number, count in zip(unpack_ids(plan.rows), unpack_ids(plan.counts), strict=True):
            slot = self._slots[number]
            context += slot.filled
            slot.filled += count or 1
            prompt_tokens += count
            decode_rows += not count
            draws = slot.filled >= slot.known
            yields.append(draws)
            if draws:
                answer = self._answer(slot.opened.rid)
                # A row may be planned beyond its script's end before its end is known; such draws are thrown away.
                ids.append(answer[min(slot.drawn, len(answer) - 1)])
                slot.drawn += 1
        self.prompt_tokens += prompt_tokens
        self.steps += 1
        took = self._cost.step_ms(prompt_tokens, decode_rows, context)
        return Result(plan.step, bytes(yields), pack_ids(ids), forward_ms=took)
