"""The scheduler without I/O: events in, actions out.

Events are method calls that only change state; `decide` then plans once for all that has changed and returns what is to be done. `now` is
seconds on any clock that never goes back. Equal sequences of calls give equal actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from phloem_proto.messages import (
    Cancel,
    End,
    ErrorInfo,
    FlushReply,
    Grammar,
    GrammarSpec,
    KvWatch,
    KvWatchReply,
    Live,
    LiveReply,
    Open,
    Output,
    Pin,
    Pins,
    Radix,
    RadixReply,
    Result,
    StopAt,
    Unpin,
    Verdict,
    WorkerProfile,
)

from .actions import Action, Answer, AskCompile, NewSession, PublishKv, Reply, SendLost
from .chunks import Budget
from .counters import Counters
from .events import WATCH_S, Events
from .grammars import Grammars
from .ledger import Ledger
from .lifecycle import Lifecycle
from .opening import Opening, accepted
from .outbox import Outbox
from .pins import Pins as Leases
from .placement import Guard
from .planner import Planner
from .queue import WaitingQueue
from .recovery import Recovery
from .requests import Choice, Request, Stage
from .results import BadResult, Results
from .rows import Row
from .settings import Settings
from .slices import Slices
from .tree import RadixTree
from .view import picture
from .worker import WorkerState

# A detokeniser beats and is linked within a second of its start; one that is not linked by then can't be reached from here.
UNLINKED_S = 3.0
# Flushes that wait for the scheduler to be idle; each is a person or a test waiting at an HTTP call.
MOST_FLUSHES = 64
# Pictures of the tree that wait for their pass: at most a second of work, which is how long a gateway waits for one.
MOST_LOOKS = 64
# Cached pages of a worker that is gone, or of a flush, which one pass takes out of the tree: some 2 ms.
CLEARED_PER_PASS = 1024
# Requests that one pass looks after when something concerns many at once: some 5 ms.
REQUESTS_PER_PASS = 256
# Pages of prompts before any worker has told its own size.
FIRST_PAGE_SIZE = 16


class BadProfile(Exception):
    """Raised when a worker can't be driven together with the others."""


class Core:
    """All state of one scheduler.

    Args:
        incarnation: random, so that those who watch the caches can tell sessions of workers apart.
    """

    def __init__(self, settings: Settings | None = None, incarnation: int = 0) -> None:
        self.settings = settings or Settings()
        self.counters = Counters()
        self.tree = RadixTree(FIRST_PAGE_SIZE)
        self.queue = WaitingQueue(self.tree, self.settings.policy, self.settings.ageing_s, self.settings.reuse)
        self.outbox = Outbox()
        self.life = Lifecycle(self.queue, self.outbox, self.counters)
        self.ledger = Ledger()
        self.grammars = Grammars()
        self.opening = Opening(self.settings, self.ledger, self.life, self.grammars, self.counters)
        self.results = Results(self.life)
        self.pins = Leases(self.settings.pin_share)
        self.events = Events(incarnation)
        budget = Budget(self.settings.chunk_ms, self.settings.chunk_tokens)
        self.planner = Planner(
            self.queue,
            self.life,
            budget,
            self.settings.depth,
            self.settings.reserve,
            preempt_above=self.settings.preempt_above,
            guard=Guard(self.settings.balance_ratio, self.settings.balance_rows),
            relieve=self.pins.relieve,
        )
        self.workers: dict[str, WorkerState] = {}  # in order of joining
        self._leaving: list[WorkerState] = []  # gone; what they had cached is still taken out of the tree
        self._evicted_before = 0  # pages, by workers that are gone
        self._actions: list[Action] = []
        self._unlinked: dict[str, float] = {}  # detokeniser -> since when requests are routed to it without a link
        self._slices = Slices(REQUESTS_PER_PASS)
        self._looks: deque[tuple[Radix, object]] = deque()
        self._flushes: list[tuple[float, object]] = []
        self._flushed_pages = 0  # by the flush that is under way
        self._workerless_since: float | None = None
        self.recovery = Recovery()

    # --- Requests ---------------------------------------------------------------------------------------------------------

    def open(self, message: Open, ticket: object, now: float) -> None:
        """Take a request in, or adopt it, or refuse it. The reply is an action.

        A grammar without a verdict delays only its own request: one that is refused later ends the request with an error.
        """
        known = self.opening.known(message, now)
        if isinstance(known, ErrorInfo):
            self._reply(ticket, accepted(message, known))
            return
        if known is None:
            refused = self.opening.refusal(
                message,
                self.waiting,
                list(self.workers.values()),
                self.retry_after_ms,
                recovering=self.recovery.under_way(now),
            )
            if (
                refused is None
                and message.grammar is not None
                and isinstance(verdict := self.grammars.known(message.grammar), ErrorInfo)
            ):
                refused = verdict
            if refused is not None:
                self.counters.rejected += 1
                self._reply(ticket, accepted(message, refused))
                return
            known = self.opening.admit(message, now)
            self._judge(known)
        if known.detokeniser not in self.outbox.linked:
            self._unlinked.setdefault(known.detokeniser, now)
        self._reply(ticket, accepted(message))

    def _judge(self, request: Request) -> None:
        """Into the queue, or outside it until the grammar has its verdict."""
        if request.spec is not None and not request.done:
            verdict = self.grammars.known(request.spec)
            if verdict is None:
                if self.grammars.wait(request):
                    self._actions.append(AskCompile(request.spec, request.rid))
                return
            assert not isinstance(verdict, ErrorInfo)
            request.grammar = verdict
        self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        for choice in request.choices:
            if choice.stage is Stage.JUDGING:
                choice.move("judged")
                self.queue.add(choice)

    def verdict(self, spec: GrammarSpec, verdict: Verdict) -> None:
        """A grammar is judged, or its judging failed: those who waited go into the queue, each at its own place, or end."""
        self._slices.add(self._judged(*self.grammars.judged(spec, verdict)))

    def _judged(self, requests: Iterable[Request], answer: Grammar | ErrorInfo) -> Iterator[None]:
        for request in requests:
            if isinstance(answer, Grammar):
                request.grammar = answer
                self._enqueue(request)
            elif not request.done:
                self.counters.rejected += 1
                self._end_all(request, End("error", code=answer.code, message=answer.message))
            yield

    def cancel(self, message: Cancel, now: float) -> None:
        """The gateway is done with this attempt and lower ones. Repeating it, or naming what is unknown, does nothing more."""
        self.ledger.bury(message.rid, message.attempt, now)
        request = self.ledger.requests.get(message.rid)
        if request is not None and message.attempt >= request.attempt:
            self._forget(request, End("abort"))

    def _forget(self, request: Request, end: End) -> None:
        """Nobody waits for request any more: end what is left of it without a word, and keep nothing."""
        self.counters.cancelled += not request.done
        self.outbox.drop(request)
        self.grammars.leave(request)
        for choice in request.choices:
            if choice.stage is not Stage.ENDED:
                self.life.end(choice, end, tell=False)
        self.ledger.remove(request)
        request.choices = []  # they know it too: without this, only a garbage collection would free them

    def stop_at(self, message: StopAt) -> None:
        """The detokeniser found a stop string: the choice ends with its first `keep` tokens, whatever ended it at or after that."""
        request = self.ledger.requests.get(message.rid)
        if request is None or request.attempt != message.attempt or message.child >= len(request.choices):
            self.counters.stale += 1
            return
        choice = request.choices[message.child]
        if choice.stage is Stage.ENDED:
            if len(choice.output) >= message.keep:
                choice.end = End("stop")
                truncate(choice, message.keep)
            return
        self.life.end(choice, End("stop"), tell=False)
        truncate(choice, message.keep)

    # --- Workers ----------------------------------------------------------------------------------------------------------

    def worker_joined(self, instance: str, profile: WorkerProfile) -> None:
        """A worker accepted a new session: empty slots, empty pages.

        Raises:
            BadProfile: its pages have another size than those of the workers that are here.
        """
        assert instance not in self.workers, "worker_gone is due first"
        if profile.page_size != self.tree.page_size:
            self._resize(profile.page_size)
        worker = self.workers[instance] = WorkerState(
            instance,
            profile,
            self.tree,
            self.settings.max_running,
            reuse=self.settings.reuse,
            eviction=self.settings.eviction,
        )
        self.events.joined(worker.cache.shelf, instance)

    def _resize(self, page_size: int) -> None:
        """Hang those who wait on a new tree of another page size, if no worker needs the present one."""
        if self.workers:
            raise BadProfile(f"its pages have {page_size} tokens, those of the other workers {self.tree.page_size}")
        self._leaving.clear()
        self.tree = RadixTree(page_size)
        self._slices.add(self.queue.move_to(self.tree))
        self.events.attach(self.tree)

    def worker_gone(self, instance: str, failed_step: int = 0) -> None:
        """A worker's session is over: its rows wait again, each at its place, and replay on any worker."""
        worker = self.workers.pop(instance, None)
        if worker is None:
            return
        blamed = [row for plan in worker.plans if plan.step == failed_step for row in plan.rows]
        rows: dict[Row, None] = dict.fromkeys(worker.rows.values())
        rows.update((row, None) for plan in worker.plans for row in plan.rows)
        self._evicted_before += worker.cache.evicted_pages
        self.pins.worker_gone(worker)
        self.events.gone(worker.cache.shelf)
        worker.abandon()
        self._leaving.append(worker)
        for row in rows:
            self.life.drop(row, failed=row in blamed)

    def result(self, instance: str, result: Result) -> None:
        """A step's result. One that does not fit what was planned voids the session."""
        worker = self.workers.get(instance)
        if worker is None:
            return
        try:
            self.results.commit(worker, result)
        except BadResult as problem:
            self._renew(instance, str(problem))

    def step_failed(self, instance: str, step: int, message: str) -> None:
        """A step failed, and with it the session. Everything it held is planned anew from what is committed."""
        if instance in self.workers:
            self.counters.failed_steps += 1
            self._renew(instance, message, step)

    def _renew(self, instance: str, reason: str, failed_step: int = 0) -> None:
        self.worker_gone(instance, failed_step)
        self._actions.append(NewSession(instance, reason))

    # --- Detokenisers and gateways ------------------------------------------------------------------------------------------

    def detokeniser_joined(self, instance: str) -> None:
        """Its link is open: what was drawn meanwhile is sent."""
        self.outbox.linked[instance] = None
        self._unlinked.pop(instance, None)
        for request in self.ledger.requests.values():
            if request.detokeniser == instance:
                self.outbox.resend(request, request.told_from)

    def detokeniser_gone(self, instance: str) -> None:
        """Gateways are to open its requests elsewhere; they go on meanwhile."""
        self.outbox.linked.pop(instance, None)
        self._unlinked.pop(instance, None)
        self.outbox.withdraw(instance)
        lost: dict[str, dict[bytes, int]] = {}
        for request in self.ledger.requests.values():
            if request.detokeniser == instance:
                lost.setdefault(request.gateway, {})[request.rid] = request.attempt
        self._actions.extend(
            SendLost(gateway, tuple(attempts), "detokeniser gone", tuple(attempts.values()))
            for gateway, attempts in lost.items()
        )

    def gateway_gone(self, instance: str, now: float) -> None:
        """Nobody waits for its requests any more."""
        self.recovery.caught_up(instance)
        self.pins.gateway_gone(instance)
        view = self.ledger.gateways.get(instance)
        self._give_up(view.requests.values() if view else (), now)

    def live(self, gateway: str, message: Live, now: float, incarnation: int = 0) -> LiveReply:
        """What a gateway (this process of it) says it holds, one part of the list at a time."""
        reply, gone = self.ledger.reconcile(gateway, message, incarnation)
        self.recovery.listed(gateway, message.part, message.parts, complete=not reply.unknown)
        self._give_up(gone, now)
        return reply

    def _give_up(self, requests: Iterable[Request], now: float) -> None:
        """Cancel them as they are now: one that another gateway opens again meanwhile goes on."""
        self._slices.add(self._cancelled([Cancel(request.rid, request.attempt) for request in requests], now))

    def _cancelled(self, messages: list[Cancel], now: float) -> Iterator[None]:
        for message in messages:
            self.cancel(message, now)
            yield

    def undeliverable(self, output: Output) -> None:
        """These frames are larger than a message may be, logprobs being what makes them so: their requests end with an error."""
        for rid in dict.fromkeys(frame.rid for frame in output.frames):
            request = self.ledger.requests.get(rid)
            if request is None:
                continue
            for choice in request.choices:
                choice.logprobs, choice.logprob_base, choice.prompt_logprobs = [], len(choice.output), []
            self._end_all(
                request, End("error", code="too_large", message="the logprobs asked for are too many for one message")
            )

    # --- Caches -----------------------------------------------------------------------------------------------------------

    def pin(self, message: Pin, ticket: object, now: float) -> None:
        """Grant or renew a lease on a prefix; the reply is an action, as are those below."""
        self._reply(ticket, self.pins.open(message, self.workers.values(), now))

    def unpin(self, message: Unpin, ticket: object, now: float) -> None:
        """End a lease."""
        self._reply(ticket, self.pins.close(message.owner, message.pin, now))

    def list_pins(self, message: Pins, ticket: object, now: float) -> None:
        """The leases of one owner."""
        self._reply(ticket, self.pins.of(message.owner, now))

    def radix(self, message: Radix, ticket: object) -> None:
        """A picture of the tree, made at the end of a pass: one in each, so that any number of those who look keep no worker waiting."""
        if len(self._looks) >= MOST_LOOKS:
            self._reply(ticket, RadixReply(error=ErrorInfo("busy", "too many look at once", retry_after_ms=1000)))
        else:
            self._looks.append((message, ticket))

    def watch(self, message: KvWatch, ticket: object, now: float) -> None:
        """Publish what enters and leaves the caches for a while; with `snapshot`, first all that is there."""
        if self.events.watch(message.watcher, message.snapshot, self.tree, now):
            self._reply(ticket, KvWatchReply(round(WATCH_S * 1000)))
        else:
            self._reply(ticket, KvWatchReply(error=ErrorInfo("busy", "too many watch the caches", retry_after_ms=1000)))

    # --- Upkeep -----------------------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: int, ticket: object, now: float) -> None:
        """Empty every cache once nothing runs, if that is within `timeout_ms`; the reply is an action."""
        if len(self._flushes) >= MOST_FLUSHES:
            self._reply(ticket, FlushReply(error=ErrorInfo("busy", "too many flushes are waiting")))
        else:
            self._flushes.append((now + timeout_ms / 1000, ticket))

    def drain(self) -> None:
        """Refuse new requests from now on; those that are here go on."""
        self.opening.draining = True

    def decide(self, now: float) -> list[Action]:
        """Plan for all that has happened; returns what is to be done, in order."""
        self._expire(now)
        self._slices.go_on()
        for _ in range(self.settings.depth):
            plans = self.planner.plan(list(self.workers.values()))
            if not plans:
                break
            self._actions.extend(plans)
        for request in self.life.finished:
            if request.rid in self.ledger.requests:
                self.ledger.done(request, now)
        self.life.finished.clear()
        self._actions.extend(self.outbox.take())
        self._clear()
        self._flush_if_idle(now)
        self._actions.extend(map(PublishKv, self.events.take()))
        if self._looks:
            message, ticket = self._looks.popleft()
            self._reply(ticket, picture(message, self.tree, self.workers.values(), self.waiting))
        actions, self._actions = self._actions, []
        return actions

    def _clear(self) -> None:
        """Take a part of what gone workers had cached out of the tree."""
        while self._leaving:
            if self._leaving[0].cache.evict(CLEARED_PER_PASS) == CLEARED_PER_PASS:
                return
            self._leaving.pop(0)

    def _expire(self, now: float) -> None:
        self.pins.expire(now)
        self.events.expire(now)
        late, old = self.ledger.expire(now, REQUESTS_PER_PASS)
        for request in late:
            self._end_all(request, End("abort", code="deadline", message="the deadline has passed"))
        for request in old:
            self._forget(request, End("abort"))
        for instance, since in list(self._unlinked.items()):
            if now - since >= UNLINKED_S:
                self.detokeniser_gone(instance)
        if self.workers or not self.waiting:
            self._workerless_since = None
        elif self._workerless_since is None:
            self._workerless_since = now
        elif now - self._workerless_since >= self.settings.worker_wait_s:
            self._workerless_since = None
            self._slices.add(self._without_worker(list(self.ledger.requests.values())))

    def _without_worker(self, requests: list[Request]) -> Iterator[None]:
        for request in requests:
            if not self.workers:
                self._end_all(request, End("error", code="unavailable", message="no worker came back"))
            yield

    def _end_all(self, request: Request, end: End) -> None:
        self.grammars.leave(request)
        for choice in request.choices:
            if choice.stage is not Stage.ENDED:
                self.life.end(choice, end)

    def _flush_if_idle(self, now: float) -> None:
        if self._flushes and self.idle:
            if self._flush_part():
                return
            for _, ticket in self._flushes:
                self._reply(ticket, FlushReply(self._flushed_pages))
            self._flushes, self._flushed_pages = [], 0
        for until, ticket in self._flushes:
            if until <= now:
                self._reply(ticket, FlushReply(error=ErrorInfo("busy", "requests are running")))
        self._flushes = [entry for entry in self._flushes if entry[0] > now]
        if not self._flushes:
            self._flushed_pages = 0
        if self.idle:
            self.planner.reserve.idle()

    def _flush_part(self) -> bool:
        """Evict some of what is cached; returns whether there may be more."""
        left = CLEARED_PER_PASS
        for worker in self.workers.values():
            pages = worker.cache.evict(left)
            self._flushed_pages += pages
            left -= pages
            if not left:
                return True
        for worker in self.workers.values():
            if not worker.cache.shelf.total_pages:
                self.events.cleared(worker.cache.shelf)
        return False

    def _reply(self, ticket: object, message: Answer) -> None:
        self._actions.append(Reply(ticket, message))

    # --- Questions --------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Rows that have a slot."""
        return sum(len(worker.rows) for worker in self.workers.values())

    @property
    def waiting(self) -> int:
        """Choices that have not ended and have no slot, those outside the queue included."""
        return self.life.live - self.running

    @property
    def evicted_tokens(self) -> int:
        """Tokens whose KV had to make room."""
        pages = self._evicted_before + sum(worker.cache.evicted_pages for worker in self.workers.values())
        return pages * self.tree.page_size

    @property
    def idle(self) -> bool:
        """No choice is live and no worker has anything to do."""
        return self.life.live == 0 and all(worker.idle for worker in self.workers.values())

    def next_wakeup(self, now: float) -> float | None:
        """When `decide` should be called although nothing happens; None if only events matter."""
        more = self._leaving or self._slices or self._looks or self.events.under_way or self.ledger.overdue(now)
        if more or (self._flushes and self.idle):
            return now
        waits = self.ledger.requests or self._flushes or self._unlinked or len(self.pins) or self.events.watched
        return now + 0.25 if waits else None

    def retry_after_ms(self) -> int:
        """When a refused client should come back: when what waits has been computed, at the measured pace, within 1 to 30 s."""
        waiting = self.queue.tokens
        rate = sum(1 / each for worker in self.workers.values() if (each := worker.pace.line()[1]) > 0)
        return int(min(30_000, max(1_000, waiting / rate if rate else 0)))

    def check(self) -> None:
        """Raise AssertionError if any invariant does not hold. Linear in everything: for tests and for an idle service."""
        self.tree.check()
        for worker in self.workers.values():
            worker.check()
        choices = [choice for request in self.ledger.requests.values() for choice in request.choices]
        live = [choice for choice in choices if choice.stage is not Stage.ENDED]
        assert self.life.live == len(live)
        assert sum(choice.stage is Stage.RUNNING for choice in live) == self.running
        assert sum(choice.stage is Stage.WAITING for choice in live) == len(self.queue)
        for choice in choices:
            assert (choice.end is not None) == (choice.stage is Stage.ENDED)
            assert (choice.row is not None) == (choice.stage in (Stage.RUNNING, Stage.LEAVING))
            assert (choice.node is not None) == (choice.stage is Stage.WAITING) or self._slices


def truncate(choice: Choice, keep: int) -> None:
    """Forget the output of an ended choice after its first `keep` tokens."""
    del choice.output[keep:]
    del choice.logprobs[max(0, keep - choice.logprob_base) :]
