"""The gateway's working parts, joined: admission, tokenising, opening, output, recovery and reconcile. Both edges call this."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from phloem_bus.errors import BusError, Disconnected, LinkClosed
from phloem_bus.link import Link
from phloem_bus.log import about
from phloem_bus.presence import Peer, Presence
from phloem_proto.messages import End, LiveReply, Lost, Message, SamplingParams, Text
from phloem_proto.subjects import Role

from .admission import Admission, Ticket
from .answer import Answer, aborted, deadline_exceeded
from .backends import Backends
from .checks import ModelFacts, fits
from .config import GatewayConfig
from .core import Core
from .errors import ApiError
from .kv_events import KvHub
from .live import Child, Live
from .metrics import Metrics
from .opener import Opener
from .pins import PinDesk
from .recovery import Recovery
from .request import Generation
from .texts import Texts

RECONCILE_S = 1.0
NAME_STREAMS_S = 5.0
"""Between lists for detokenisers: a stream too many there costs some memory, and is rare."""
NAMED_AT_ONCE = 250
"""Requests in one message of those that name what we hold: with ten thousand, nobody's loop stops for long to write or read them."""
LARGE_BODY = 4096
"""Bytes: reading fewer takes less than half a millisecond, and 80 calls may come in one turn of the loop."""
OPENED_AT_ONCE = 4
"""Generations of a call that are opened in one turn of the event loop: a call may have a hundred, and a hundred calls come at once."""
OUTBOX = 16384
"""Cancels waiting for the bus. What overflows is repaired by the next reconcile, which no longer names those requests."""
RESEND_S = 0.1
"""Between tries to send while the bus is down."""

_log = logging.getLogger("phloem.gateway")


class Gateway:
    """All there is between the edges and the bus. `run` must run beside the edges.

    Args:
        presence: ours, watching schedulers and tokenizers.
        rng: draws rids and seeds.
    """

    def __init__(
        self, config: GatewayConfig, presence: Presence, model: str, metrics: Metrics, rng: random.Random
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.backends = Backends(presence, model)
        self.texts = Texts(self.backends)
        self.core = Core(config.byte_budget)
        self.admission = Admission(config.max_live)
        self.pins = PinDesk(self, self.backends, rng)
        self.kv = KvHub(presence, self.backends)
        self.opener = Opener(self.core, self.backends, metrics, presence.node.instance, self._tell)
        self._recovery = Recovery(self._open_again, config.recover_s, self._caught_up)
        self._unreconciled = anyio.Event()
        self._node = presence.node
        self._rng = rng
        self._answers: dict[bytes, Answer] = {}
        self._calls: dict[int, Answer] = {}
        self._turn = anyio.Lock()
        self._closed = anyio.Event()
        self._outbox: deque[tuple[Role, str, Message]] = deque()
        self._outgoing = anyio.Event()
        self._leader: tuple[str, int] | None = None
        self._leader_waits = False

    # --- For the edges ----------------------------------------------------------------------------------------------

    def answer(
        self,
        generations: tuple[Generation, ...],
        owner: str,
        request_id: str,
        timeout_s: float | None = None,
        *,
        logged_as: str = "",
    ) -> Answer:
        """A client's call; see `Answer` for how to use it. ``timeout_s`` can only shorten the configured deadline.

        ``logged_as``: the id that log lines show, if that is not ``request_id``.
        """
        limit = self.config.request_timeout_s
        wait = limit if timeout_s is None else min(limit, timeout_s)
        return Answer(self, generations, owner, request_id, anyio.current_time() + wait, logged_as or request_id)

    @property
    def facts(self) -> ModelFacts:
        """The model as peers describe it."""
        return self.backends.facts()

    def check_room(self) -> None:
        """Turn a client away before its request is parsed, if nobody can be let in now. Raises `ApiError` (``rate_limit_exceeded``)."""
        leader = self.backends.leader()
        if leader is not None:
            self.admission.check_room(leader.load)

    @asynccontextmanager
    async def in_turn(self, much: bool) -> AsyncIterator[None]:
        """For work that takes milliseconds if there is ``much`` of it, such as a body of a hundred prompts: one such piece in each turn of
        the event loop, so that what else is ready comes between two of them. What is little goes on at once."""
        if not much:
            yield
            return
        async with self._turn:
            yield

    def abort(self, owner: str, request_id: str) -> int:
        """End the live calls of ``owner`` with this request id; returns how many there were."""
        found = [a for a in self._calls.values() if a.owner == owner and a.request_id == request_id]
        for answer in found:
            answer.aborted = True
            self._end(answer, End("abort", code="aborted", message="The request was aborted."))
        return len(found)

    def has_call(self, owner: str, request_id: str) -> bool:
        """Whether a live call of ``owner`` has this request id."""
        return any(a.owner == owner and a.request_id == request_id for a in self._calls.values())

    async def wait_idle(self) -> None:
        """Return once no call is live."""
        while self._calls:
            self._closed = anyio.Event()
            await self._closed.wait()

    def end_all(self, message: str) -> None:
        """End every live call with ``service_unavailable``: the server stops."""
        for answer in list(self._calls.values()):
            self._end(answer, End("error", code="unavailable", message=message))

    # --- For `Answer` -----------------------------------------------------------------------------------------------

    def register(self, answer: Answer) -> None:
        """A call begins."""
        self._calls[id(answer)] = answer

    def close(self, answer: Answer) -> None:
        """A call is over: whatever still runs for it is cancelled at once."""
        self._calls.pop(id(answer), None)
        self._closed.set()
        now = anyio.current_time()
        for live in answer.lives:
            self._answers.pop(live.rid, None)
            self._count(live, answer, now)
            self._tell(self.core.remove(live.rid))

    def expire(self, answer: Answer) -> None:
        """The deadline passed."""
        late = deadline_exceeded()
        self._end(answer, End("error", code="deadline", message=late.message))

    async def start(self, answer: Answer) -> None:
        """Admit, tokenise and open ``answer``'s generations. Raises `ApiError`."""
        leader = await self.backends.require()
        tickets = self.admission.take([g.prompt_bytes for g in answer.generations], leader.load)
        try:
            prompts, tokenizer = await self.texts.prompts(answer.generations, answer.deadline)
            facts = self.facts
            for generation, ids in zip(answer.generations, prompts, strict=True):
                fits(generation.prompt_param, len(ids) // 4, facts)
            await self._open_all(answer, prompts, tickets, tokenizer, facts)
        finally:
            for ticket in tickets[len(answer.lives) :]:
                ticket.release()

    def _add(self, answer: Answer, generation: Generation, ids: bytes, ticket: Ticket, facts: ModelFacts) -> None:
        ticket.resize(len(ids))
        wanted = generation.sampling
        seed = self._rng.getrandbits(63) if wanted.seed is None else wanted.seed
        live = Live(
            rid=self._rng.randbytes(16),
            generation=generation,
            prompt=ids,
            params=sampling_params(generation, len(ids) // 4, facts),
            seed=seed,
            arrival=answer.arrival,
            deadline=answer.deadline,
            ticket=ticket,
            children=[Child() for _ in range(wanted.n)],
        )
        answer.lives.append(live)
        self._answers[live.rid] = answer
        self.core.add(live)
        self._log(live, logging.INFO, "enters; prompt tokens: %d", len(ids) // 4)
        self.metrics.live.set(len(self.core.live))

    async def _open_all(
        self, answer: Answer, prompts: list[bytes], tickets: list[Ticket], tokenizer: str, facts: ModelFacts
    ) -> None:
        failures: list[ApiError] = []
        wanted = list(zip(answer.generations, prompts, tickets, strict=True))

        async def one(live: Live) -> None:
            try:
                await self.opener.open(live, self.config.patience_s, prefer=tokenizer)
            except ApiError as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for first in range(0, len(wanted), OPENED_AT_ONCE):
                async with self.in_turn(len(wanted) > OPENED_AT_ONCE):
                    if answer.aborted:
                        failures.append(aborted())
                        tasks.cancel_scope.cancel()
                        break
                    for generation, ids, ticket in wanted[first : first + OPENED_AT_ONCE]:
                        self._add(answer, generation, ids, ticket, facts)
                        tasks.start_soon(one, answer.lives[-1])
        if failures:
            raise failures[0]

    # --- Output -----------------------------------------------------------------------------------------------------

    def on_text(self, link: Link, message: Text) -> None:
        """A detokeniser's frames."""
        touched, again = self.core.text(link.peer_instance, message, anyio.current_time())
        self._wake(touched)
        self._reopen(again)

    def _wake(self, lives: Iterable[Live]) -> None:
        for live in lives:
            answer = self._answers[live.rid]
            if live.ended:
                self._tell(self.core.settle(live))
            if self.core.over_budget(live):
                answer.cut_off()
            answer.wake()

    def _end(self, answer: Answer, end: End) -> None:
        for live in answer.lives:
            self.core.end(live, end)
        self._wake(answer.lives)
        answer.wake()

    def _tell(self, messages: Iterable[tuple[Role, str, Message]]) -> None:
        for item in messages:
            if not self._tell_over_link(*item) and len(self._outbox) < OUTBOX:
                self._outbox.append(item)
        self._outgoing.set()
        self.metrics.live.set(len(self.core.live))

    def _tell_over_link(self, role: Role, instance: str, message: Message) -> bool:
        """A detokeniser hears of cancels over its link, where nothing is lost. False if there is none (any more)."""
        link = self.backends.links.get(instance) if role is Role.TOKENIZER else None
        if link is None:
            return False
        try:
            link.send(message)
        except LinkClosed:
            return False
        return True

    def _count(self, live: Live, answer: Answer, now: float) -> None:
        metrics = self.metrics
        metrics.prompt_tokens.inc(live.prompt_tokens)
        metrics.cached_tokens.inc(max(live.cached_tokens, 0))
        metrics.completion_tokens.inc(live.completion_tokens)
        if live.first_token is not None:
            metrics.first_token.observe(live.first_token - live.arrival)
        if live.ended:
            metrics.latency.observe(now - live.arrival)
        else:
            metrics.cancelled.labels("slow_client" if answer.cut else "client_gone").inc()

    def _log(self, live: Live, level: int, text: str, *values: object) -> None:
        """A record under the client's request id, with the id that other services' records about it carry."""
        known = self._answers.get(live.rid)
        extra = {"request_id": known.logged_as if known else "", "inside": about(live.rid)["request_id"]}
        _log.log(level, text, *values, extra=extra)

    # --- Recovery ---------------------------------------------------------------------------------------------------

    def on_lost(self, message: Lost) -> None:
        """A scheduler or detokeniser gave requests up."""
        self._reopen(self.core.lost(message.rids, message.attempts))

    def on_detokeniser_gone(self, instance: str) -> None:
        """A detokeniser's link is gone."""
        self._reopen(self.core.detokeniser_gone(instance))

    def on_scheduler_gone(self, peer: Peer) -> None:
        """A scheduler is gone."""
        self._reopen(self.core.scheduler_gone(peer.instance, peer.incarnation))

    def on_scheduler_change(self) -> None:
        """A scheduler came, or changed its state or term: requests of a former leader move to the new one."""
        leader = self.backends.leader()
        if leader is None or self._leader == (leader.instance, leader.incarnation):
            return
        self._leader = (leader.instance, leader.incarnation)
        self._leader_waits = True
        self._reopen(self.core.leader_changed(*self._leader))
        if self._recovery.idle:
            self._caught_up()

    def _reopen(self, lives: Iterable[Live]) -> None:
        lost = list(lives)
        for live in lost:
            self._log(live, logging.INFO, "attempt %d is lost; opening again", live.attempt)
        self._recovery.add(lost)

    def _caught_up(self) -> None:
        """All is opened again. A new leader, who takes nothing new before it knows that, is told without waiting for the next second."""
        if self._leader_waits:
            self._leader_waits = False
            self._unreconciled.set()

    async def _open_again(self, live: Live, until: float) -> None:
        """Open elsewhere with what we hold; a request that can't be opened in time ends with an error."""
        if live.rid not in self.core.live:
            return  # its client left while it waited for its turn
        try:
            await self.opener.open(live, until - anyio.current_time(), persistent=True)
        except ApiError as error:
            if live.rid in self.core.live:
                code = {"service_unavailable": "unavailable", "deadline_exceeded": "deadline"}.get(
                    error.code, "internal"
                )
                self._log(live, logging.WARNING, "could not be opened again: %s", error.code)
                self.core.end(live, End("error", code=code, message=error.message))
                self._wake([live])

    # --- Tasks ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send, reconcile and recover until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send)
            tasks.start_soon(self._recovery.run)
            tasks.start_soon(self._reconcile)
            tasks.start_soon(self._name_streams)
            tasks.start_soon(self.kv.run)

    async def _send(self) -> None:
        while True:
            self._outgoing = anyio.Event()
            while self._outbox:
                try:
                    await self._node.send(*self._outbox[0])
                except Disconnected:
                    await anyio.sleep(RESEND_S)
                    continue
                except BusError:
                    pass  # trying again would not help
                self._outbox.popleft()
            await self._outgoing.wait()

    async def _reconcile(self) -> None:
        number = 0
        while True:
            with anyio.move_on_after(RECONCILE_S):
                await self._unreconciled.wait()
            self._unreconciled = anyio.Event()
            number += 1
            leader = self.backends.leader()
            if leader is None or not self._node.bus.connected:
                continue
            for reason, count in self.core.dropped.items():
                self.metrics.dropped.labels(reason).set(count)
            for part in self.core.reconcile(number, NAMED_AT_ONCE):
                try:
                    reply = await self._node.call(Role.SCHEDULER, leader.instance, part, LiveReply, timeout=1.0)
                except BusError:
                    break
                self._reopen(self.core.reconciled(part.requests, reply.unknown, reply.ahead))

    async def _name_streams(self) -> None:
        """Tell each detokeniser, now and then, what we hold there, so that it does not keep what nobody holds."""
        while True:
            await anyio.sleep(NAME_STREAMS_S)
            for instance in list(self.backends.links):
                for message in self.core.held_at(instance, NAMED_AT_ONCE):
                    self._tell_over_link(Role.TOKENIZER, instance, message)
                    await anyio.lowlevel.checkpoint()


def sampling_params(generation: Generation, prompt_tokens: int, facts: ModelFacts) -> SamplingParams:
    """The bus's form of a generation's wishes, ``max_tokens`` cut to the context."""
    wanted = generation.sampling
    room = facts.context_length - prompt_tokens if facts.context_length else None
    max_tokens = wanted.max_tokens
    if max_tokens is None:
        max_tokens = 16 if room is None else room
    elif room is not None:
        max_tokens = min(max_tokens, room)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        frequency_penalty=wanted.frequency_penalty,
        presence_penalty=wanted.presence_penalty,
        repetition_penalty=wanted.repetition_penalty,
        min_tokens=min(wanted.min_tokens, max_tokens),
        stop_token_ids=wanted.stop_token_ids,
        ignore_eos=wanted.ignore_eos,
        logit_bias=wanted.logit_bias,
        logprobs=generation.logprobs,
        prompt_logprobs=generation.prompt_logprobs,
        logprob_start=min(generation.logprob_start, max(prompt_tokens - 1, 0)),
    )
