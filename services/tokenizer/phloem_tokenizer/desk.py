"""The calls that are served in threads: prompts to ids, ids to text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from phloem_bus.node import Received
from phloem_bus.service import Offload
from phloem_proto.codec import encode_body
from phloem_proto.messages import Detokenize, Detokenized, Encode, Encoded, ErrorInfo
from phloem_tokenizer.core import TokenizerCore

REPLY_OVERHEAD = 1024  # bytes; more than envelope, sender and headers of a reply take
BUSY = ErrorInfo("busy", "too many prompts wait to be encoded", retry_after_ms=1000)

R = TypeVar("R", Encoded, Detokenized)


class Desk:
    """Answers Encode and Detokenize.

    `clock` gives the wall time that a chat template may show, `steady` seconds for deadlines.
    """

    def __init__(
        self,
        core: TokenizerCore,
        offload: Offload,
        max_payload: int,
        clock: Callable[[], datetime] = datetime.now,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._offload = offload
        self._max_reply = max_payload - REPLY_OVERHEAD
        self._clock = clock
        self._steady = steady
        self.open = 0  # calls being answered
        self.counters: Counter[str] = Counter({"encode_calls": 0, "encoded_tokens": 0, "detokenize_calls": 0})
        self.on_done: Callable[[], None] = lambda: None

    async def encode(self, received: Received[Encode]) -> Encoded:
        """Answer within the call's deadline; after it the thread gives up as soon as it can."""
        request = received.message
        until = self._steady() + request.deadline_ms / 1000 if request.deadline_ms else float("inf")
        now = self._clock()
        reply = await self._run(lambda: self._core.encode(request, now, lambda: self._steady() > until))
        self.counters["encode_calls"] += 1
        self.counters["encoded_tokens"] += sum(map(len, reply.ids)) // 4
        return self._fitting(reply, Encoded)

    async def detokenize(self, received: Received[Detokenize]) -> Detokenized:
        """Answer with texts and pieces."""
        request = received.message
        reply = await self._run(lambda: self._core.detokenize(request))
        self.counters["detokenize_calls"] += 1
        return self._fitting(reply, Detokenized)

    async def _run(self, work: Callable[[], R]) -> R:
        self.open += 1
        try:
            return await self._offload(work)
        finally:
            self.open -= 1
            self.on_done()

    def _fitting(self, reply: R, kind: type[R]) -> R:
        """The reply, or an error if no message of this bus can hold it."""
        size = len(encode_body(reply))
        if size <= self._max_reply:
            return reply
        problem = f"the result takes {size} bytes, and a message at most {self._max_reply}"
        return kind(error=ErrorInfo("too_large", problem))
