"""Whether a waiting choice can start on a worker now.

A newcomer needs room for its known tokens and its whole remaining output (clipped), in what is left after the reserve of the rows that run.
On a worker where nothing runs it needs room for its known tokens only: there it can't take anything from anybody.
"""

from __future__ import annotations

from enum import Enum

from phloem_proto.messages import End

from .chunks import chunk
from .ends import held_end
from .lifecycle import Lifecycle
from .requests import Choice, Request, Stage
from .reserve import CLIP_TOKENS, Reserve
from .rows import Row
from .tree import TOKEN_BYTES, Match
from .worker import WorkerState


class Answer(Enum):
    """What became of a choice that was considered."""

    ADMITTED = "admitted"
    ASIDE = "aside"  # parked, or ended: it needs no place any more
    NO_ROOM = "no room"  # stays first in the queue


class Admission:
    """Considers choices one by one, in the order of the queue."""

    def __init__(self, life: Lifecycle, reserve: Reserve) -> None:
        self.life = life
        self.reserve = reserve

    def consider(self, worker: WorkerState, choice: Choice, budget: int) -> tuple[Answer, Row | None]:
        """Try to open a row for choice (popped from the queue, stage waiting), with `budget` known tokens left in the plan.

        An admitted row has its cached pages and its slot; the caller takes the pages for its first chunk.
        """
        if not worker.has_slot or budget <= 0:
            return Answer.NO_ROOM, None
        limit = output_limit(choice.request, worker)
        if (end := settle(choice, worker, limit)) is not None:
            self._end(choice, end)
            return Answer.ASIDE, None
        known, usable = choice.known(), choice.match_limit
        match = worker.cache.acquire(choice.request.namespace, known, usable)
        leader = self._leader(worker, match, known, usable)
        if leader is not None:
            worker.cache.release(match.node)
            worker.park(choice, leader, known, usable, self.life.queue.policy.order(choice))
            self.life.counters.parked += 1
            return Answer.ASIDE, None
        if not self._fits(worker, choice, match, limit, budget):
            worker.cache.release(match.node)
            return Answer.NO_ROOM, None
        return Answer.ADMITTED, self._open(worker, choice, match, limit)

    def _end(self, choice: Choice, end: End) -> None:
        self.life.queue.add(choice)  # an end starts from the stage as it is seen everywhere else: waiting, in the queue
        self.life.end(choice, end)

    def _leader(self, worker: WorkerState, match: Match, known: bytes, usable: int) -> Row | None:
        """The row that is about to compute the page which choice needs next, if there is one."""
        size = worker.cache.page_size
        start = len(match.pages) * size
        if start + size > usable:
            return None
        return worker.growing.get((match.node.order, known[start * TOKEN_BYTES : (start + size) * TOKEN_BYTES]))

    def _fits(self, worker: WorkerState, choice: Choice, match: Match, limit: int, budget: int) -> bool:
        """Asked with the match locked: the lock has taken its pages out of the room."""
        cache = worker.cache
        cached = len(match.pages) * cache.page_size
        if chunk(cached, choice.length, budget, cache.page_size) <= 0:
            return False
        if not worker.rows:
            return cache.pages_for(choice.length) - len(match.pages) <= cache.room
        left = cache.room * cache.page_size - sum(self.reserve.of(row) for row in worker.rows.values())
        output = min(max(limit - len(choice.output), 0), CLIP_TOKENS)
        return choice.length - cached + output + cache.page_size < left

    def _open(self, worker: WorkerState, choice: Choice, match: Match, limit: int) -> Row:
        row = Row(choice, worker, worker.take_slot(), match.node, match.pages, limit)
        worker.rows[row.slot] = row
        choice.row = row
        choice.move("picked")
        request = choice.request
        if request.cached_tokens < 0:
            request.cached_tokens = row.computed
        self.life.counters.prompt_tokens += row.known_tokens
        self.life.counters.cached_tokens += row.computed
        return row


def output_limit(request: Request, worker: WorkerState) -> int:
    """Most output tokens: what was asked for, cut to the worker's context and pool. Negative if not even the prompt fits."""
    return min(request.params.max_tokens, worker.capacity - request.prompt_tokens)


def settle(choice: Choice, worker: WorkerState, limit: int) -> End | None:
    """Why choice has ended before it starts on this worker: its prompt is too long, or the output it brings is complete."""
    assert choice.stage is Stage.WAITING
    if limit < min(1, choice.request.params.max_tokens):
        message = (
            f"the prompt has {choice.request.prompt_tokens} tokens; at most {worker.capacity} fit, output included"
        )
        return End("error", code="prompt_too_long", message=message)
    if choice.output and not choice.checked:
        choice.checked = True
        if (end := held_end(choice, worker.profile.eos_ids)) is not None:
            return end
    if choice.output and len(choice.output) >= limit:
        del choice.output[limit:]
        return End("length")
    return None
