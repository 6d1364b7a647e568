"""The moves of a choice that touch more than itself: into the queue, out of its slot, to its end."""

from __future__ import annotations

from array import array

from phloem_proto.messages import End

from .counters import Counters
from .outbox import Outbox
from .queue import WaitingQueue
from .requests import Choice, Request, Stage
from .rows import Row

MOST_FAILED_STEPS = (
    3  # of steps that held a choice: one that breaks the worker each time ends instead of breaking it for ever
)


class Lifecycle:
    """Shared by all parts of the core that move choices."""

    def __init__(self, queue: WaitingQueue, outbox: Outbox, counters: Counters) -> None:
        self.queue = queue
        self.outbox = outbox
        self.counters = counters
        self.finished: list[Request] = []  # requests whose last choice ended in this pass
        self.live = 0  # choices that were taken in and have not ended

    def end(self, choice: Choice, end: End, new_tokens: int = 0, tell: bool = True) -> None:
        """choice ends now, with its last `new_tokens` tokens not sent yet. tell=False: whoever asks knows already."""
        was = choice.stage
        choice.end = end
        choice.move("ended")
        if was is Stage.WAITING:
            self.queue.remove(choice)
        row, choice.row = choice.row, None
        if row is not None:
            row.commits = False
            if row.opened:
                row.worker.close(row)
        self.counters.choices_ended += 1
        self.live -= 1
        if tell:
            self.outbox.tokens(choice, new_tokens, end)
        if choice.request.done:
            self.finished.append(choice.request)

    def retract(self, row: Row) -> None:
        """Take row's slot and pages for the next plan; what plans already sent draw for it still counts, then it waits again."""
        self.counters.retractions += 1
        choice = row.choice
        choice.retractions += 1
        choice.move("retracted")
        row.worker.close(row)
        self.settle(row)

    def settle(self, row: Row) -> None:
        """If no result is due any more for a retracted row, its choice goes back to its place in the queue."""
        if row.in_flight == 0 and row.commits and not row.opened:
            row.commits = False
            row.choice.row = None
            row.choice.move("settled")
            self.queue.add(row.choice)

    def restart(self, choice: Choice, held: bytes) -> None:
        """The gateway holds more output of choice than is committed here: go on from that."""
        row, choice.row = choice.row, None
        if choice.stage is Stage.WAITING:
            self.queue.remove(choice)
        if row is not None:
            row.commits = False
            if row.opened:
                row.worker.close(row)
            choice.move("dropped" if choice.stage is Stage.RUNNING else "settled")
        choice.output = array("I")
        choice.output.frombytes(held)
        choice.logprobs, choice.logprob_base, choice.checked = [], len(choice.output), False
        if choice.stage is Stage.WAITING:
            self.queue.add(choice)

    def drop(self, row: Row, failed: bool) -> None:
        """row's worker session is gone, with all it held. failed: a step that held row is to blame.

        The choice waits again, to be replayed from what is committed.
        """
        if not row.commits:
            return
        row.commits = False
        choice = row.choice
        choice.row = None
        choice.move("dropped" if row.opened else "settled")
        self.queue.add(choice)
        if failed:
            choice.failed_steps += 1
            if choice.failed_steps >= MOST_FAILED_STEPS:
                self.end(choice, End("error", code="internal", message="the model failed on this request repeatedly"))
