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
from .node import Node
from .requests import Choice, Request, Stage
from .reserve import CLIP_TOKENS, Reserve
from .rows import Row
from .worker import WorkerState


class Answer(Enum):
    """What became of a choice that was considered."""

    ADMITTED = "admitted"
    ENDED = "ended"  # it needs no place any more
    SOON = "soon"  # in a later plan: a row of this worker is about to compute what it needs next
    NO_BUDGET = "no budget"  # in a later plan: this one takes too few known tokens more
    NO_ROOM = "no room"  # too few pages or no slot


class Admission:
    """Considers choices one by one, in the order of the queue."""

    def __init__(self, life: Lifecycle, reserve: Reserve) -> None:
        self.life = life
        self.reserve = reserve

    def consider(self, worker: WorkerState, choice: Choice, budget: int) -> tuple[Answer, Row | None]:
        """Try to open a row for choice (in the queue, stage waiting), with `budget` known tokens left in the plan.

        An admitted row has its cached pages and its slot; the caller takes the pages for its first chunk.
        """
        limit = output_limit(choice.request, worker)
        if (end := settle(choice, worker, limit)) is not None:
            self.life.end(choice, end)
            return Answer.ENDED, None
        assert choice.node is not None
        cached = worker.cache.cached(choice.node)
        if self._computed_by_another(worker, choice.node, cached):
            return Answer.SOON, None
        if not self.fits(worker, choice, cached):
            return Answer.NO_ROOM, None
        if chunk(cached.depth * worker.cache.page_size, choice.length, budget, worker.cache.page_size) <= 0:
            return Answer.NO_BUDGET, None
        return Answer.ADMITTED, self._open(worker, choice, choice.node, limit)

    def fits(self, worker: WorkerState, choice: Choice, cached: Node, slots: int = 0, tokens: int = 0) -> bool:
        """Whether slot and pages for choice can be had while everybody who runs goes on; cached: what worker has of its path.

        slots, tokens: what others who wait for this worker will take first.
        """
        return worker.free_slots > slots and self.shortage(worker, choice, cached) + tokens <= 0

    def shortage(self, worker: WorkerState, choice: Choice, cached: Node) -> float:
        """How many tokens of room choice lacks; 0 or less if none."""
        cache = worker.cache
        if not worker.rows:
            return self.shortage_alone(worker, choice, cached)
        room = self._room(worker, cached)
        left = room * cache.page_size - sum(self.reserve.of(row) for row in worker.rows.values())
        return self.need(worker, choice, cached) - left + 1

    @staticmethod
    def need(worker: WorkerState, choice: Choice, cached: Node) -> int:
        """Tokens of room that choice takes beside what is cached of it; its last page may have room for more."""
        output = min(max(output_limit(choice.request, worker) - len(choice.output), 0), CLIP_TOKENS)
        return choice.length - cached.depth * worker.cache.page_size + output + worker.cache.page_size

    def shortage_alone(self, worker: WorkerState, choice: Choice, cached: Node, freed: int = 0) -> float:
        """The same if nobody runs. freed: pages that those who run now would give back."""
        cache = worker.cache
        room = self._room(worker, cached) + freed
        return (cache.pages_for(choice.length) - cached.depth - room) * cache.page_size

    @staticmethod
    def _room(worker: WorkerState, cached: Node) -> int:
        """Pages there are for a choice beside its cached path: locking it takes these out of the room."""
        return worker.cache.room - unlocked_pages(worker, cached)

    @staticmethod
    def _computed_by_another(worker: WorkerState, node: Node, cached: Node) -> bool:
        """Whether a row of worker is about to compute what choice needs next."""
        step = node
        while step is not cached and step.parent is not None and step.parent is not cached:
            step = step.parent
        return step is not cached and worker.cache.shelf in step.computing

    def _open(self, worker: WorkerState, choice: Choice, node: Node, limit: int) -> Row:
        match = worker.cache.acquire(node)
        request = choice.request
        worker.cache.use(match.node, request.priority)
        row = Row(choice, worker, worker.take_slot(), match.node, match.pages, limit)
        row.target = node if node is not match.node else None
        worker.open(row)
        self.life.queue.remove(choice)
        choice.row = row
        choice.move("picked")
        if request.cached_tokens < 0:
            request.cached_tokens = row.computed
        self.life.counters.prompt_tokens += row.known_tokens
        self.life.counters.cached_tokens += row.computed
        worker.traffic.choices += 1
        worker.traffic.prompt_tokens += row.known_tokens
        worker.traffic.cached_tokens += row.computed
        return row


def unlocked_pages(worker: WorkerState, node: Node) -> int:
    """Pages of node's path on worker that nobody has locked."""
    pages, step, shelf = 0, node, worker.cache.shelf
    while step.parent is not None and not step.copies[shelf].locks:
        pages += len(step.copies[shelf].pages)
        step = step.parent
    return pages


def output_limit(request: Request, worker: WorkerState) -> int:
    """Most output tokens: what was asked for, cut to the worker's context and pool. Negative if not even the prompt fits."""
    return min(request.params.max_tokens, worker.capacity - request.prompt_tokens)


def too_small(request: Request, worker: WorkerState) -> bool:
    """Whether worker could never hold this request."""
    return output_limit(request, worker) < min(1, request.params.max_tokens)


def settle(choice: Choice, worker: WorkerState, limit: int) -> End | None:
    """Why choice has ended before it starts on this worker: its prompt is too long, or the output it brings is complete."""
    assert choice.stage is Stage.WAITING
    if too_small(choice.request, worker):
        message = (
            f"the prompt has {choice.request.prompt_tokens} tokens; at most {worker.capacity} fit, output included"
        )
        return End("error", code="prompt_too_long", message=message)
    if choice.output and not choice.checked:
        choice.checked = True
        if (end := held_end(choice, worker.profile.eos_ids)) is not None:
            return end
    if choice.output and len(choice.output) >= limit:
        # It may have more than this worker could hold, from a larger one that is gone: what the client was told stays.
        del choice.output[choice.request.params.max_tokens :]
        return End("length")
    return None
