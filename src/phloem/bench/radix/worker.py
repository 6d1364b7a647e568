"""A worker without a device: answers plans with one and the same token, as long as each row wants some."""

from __future__ import annotations

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Plan, Result, WorkerProfile
from phloem_scheduler.node import TOKEN_BYTES

TOKEN = 7
EOS = 0
STEP_MS = 8.0
TOKEN_MS = 0.01


def profile(page_size: int, pages: int, slots: int, context_length: int) -> WorkerProfile:
    """What the stand-in says it is: one step takes any prompt."""
    tokens = max(65_536, 2 * context_length)
    return WorkerProfile(page_size, pages, slots, tokens, context_length, 32_768, (EOS,), "bfloat16", "none")


class StandIn:
    """Knows of each slot how many prompt tokens have no KV yet: who has none left draws."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def answer(self, plan: Plan) -> Result:
        """The result of a step."""
        for slot in unpack_ids(plan.closes):
            del self._left[slot]
        for opened in plan.opens:
            self._left[opened.slot] = len(opened.ids) // TOKEN_BYTES - opened.committed
        counts = unpack_ids(plan.counts)
        yields = bytearray()
        for slot, count in zip(unpack_ids(plan.rows), counts, strict=True):
            self._left[slot] -= count
            yields.append(self._left[slot] == 0)
        forward_ms = STEP_MS + TOKEN_MS * (sum(counts) + counts.count(0))
        return Result(plan.step, bytes(yields), pack_ids([TOKEN] * sum(yields)), forward_ms=forward_ms)
