"""The scheduler's core with one worker and one detokeniser around it, driven call by call."""

from __future__ import annotations

from collections import deque

from phloem_proto.messages import Cancel, GrammarSpec, Open, Plan, SamplingParams
from phloem_scheduler.actions import SendOutput, SendPlan
from phloem_scheduler.core import Core
from phloem_scheduler.settings import Settings

from .clock import Stopwatch
from .worker import StandIn, profile

WORKER, DETOKENISER, GATEWAY = "worker", "detokeniser", "gateway"
PASS_S = 0.01
"""By which the core's clock goes on at each pass."""


class Drive:
    """What comes from outside is called in; plans wait here for their answers.

    Args:
        page_size: tokens per page.
        rows: that can run.
        queued: requests that may wait.
        sequence_tokens: most tokens of one sequence; there are pages for twice as many as all rows can have.
        cached_pages: pages beside those.
    """

    def __init__(self, *, page_size: int, rows: int, queued: int, sequence_tokens: int, cached_pages: int = 0) -> None:
        self.core = Core(Settings(max_running=rows, max_queued=queued, chunk_tokens=sequence_tokens))
        self.now = 0.0
        self.opened = 0
        pages = 2 * rows * (sequence_tokens // page_size + 1) + cached_pages
        self._profile = profile(page_size, pages, rows, sequence_tokens)
        self._done: list[bytes] = []  # rids of requests that have ended and are not cancelled yet
        self.core.detokeniser_joined(DETOKENISER)
        self.join()

    def join(self, page_size: int = 0) -> None:
        """The worker's session begins, with pages of another size if that is given."""
        if page_size:
            self._profile = profile(page_size, self._profile.pages, self._profile.slots, self._profile.context_length)
        self.stand_in = StandIn()
        self.plans: deque[Plan] = deque()
        self.core.worker_joined(WORKER, self._profile)

    def message(self, prompt: bytes, output: int, deadline_ms: int = 0, grammar: GrammarSpec | None = None) -> Open:
        """A request that nobody has seen yet."""
        self.opened += 1
        rid = self.opened.to_bytes(16, "big")
        params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        return Open(rid, 1, GATEWAY, DETOKENISER, prompt, params, self.opened, grammar=grammar, deadline_ms=deadline_ms)

    def open(self, message: Open) -> None:
        """The gateway opens it."""
        self.core.open(message, None, self.now)

    def decide(self) -> None:
        """One decision."""
        for action in self.core.decide(self.now):
            if isinstance(action, SendPlan):
                self.plans.append(action.plan)
            elif isinstance(action, SendOutput):
                self._done += [frame.rid for frame in action.output.frames if frame.end is not None]

    def turn(self, stopwatch: Stopwatch | None = None) -> None:
        """The worker answers the oldest plan; what is timed is how the core takes that in and decides."""
        result = self.stand_in.answer(self.plans.popleft())
        self.now += PASS_S

        def work() -> None:
            self.core.result(WORKER, result)
            self.decide()

        if stopwatch is None:
            work()
        else:
            stopwatch.time(work)

    def let_go(self) -> int:
        """The gateway cancels what has ended; returns how many that were."""
        rids, self._done = self._done, []
        for rid in rids:
            self.core.cancel(Cancel(rid, 1), self.now)
        return len(rids)

    def settle(self, stopwatch: Stopwatch) -> None:
        """Decide, and again as long as the core asks for it at once; each decision is timed."""
        while True:
            stopwatch.time(self.decide)
            if self.core.next_wakeup(self.now) != self.now:
                return
