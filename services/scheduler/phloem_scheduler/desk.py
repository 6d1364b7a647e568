"""Where the core meets the bus: messages become its events, its actions become messages.

Handlers only feed the core and wake the loop; the loop decides once for all that has arrived, and acts once.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
from anyio.abc import TaskGroup

from phloem_bus.errors import LinkClosed, PayloadTooLarge
from phloem_bus.link import Link, Links
from phloem_bus.log import about
from phloem_bus.node import Node, Received
from phloem_bus.presence import Peer, Presence
from phloem_proto.messages import (
    Cancel,
    ErrorInfo,
    Flush,
    FlushReply,
    GrammarSpec,
    KvWatch,
    KvWatchReply,
    Live,
    LiveReply,
    Lost,
    Open,
    OpenReply,
    Pin,
    PinReply,
    Pins,
    PinsReply,
    Profile,
    Radix,
    RadixReply,
    Result,
    StepFailed,
    StopAt,
    Unpin,
)
from phloem_proto.subjects import KV, Role

from .actions import Action, Answer, AskCompile, NewSession, PublishKv, Reply, SendLost, SendOutput, SendPlan
from .answers import Answers
from .config import SchedulerConfig
from .core import BadProfile, Core
from .judging import judge
from .leadership import Leadership
from .neighbours import Neighbours
from .passes import Passes

_log = logging.getLogger("phloem.scheduler")

MOST_UNSENT = 16
"""Messages that wait for the bus before a snapshot goes on: each of its parts is up to a megabyte, and answers to calls queue behind it."""
NOT_LEADING = ErrorInfo("unavailable", "this scheduler does not lead", retry_after_ms=1000)


class Desk:
    """The core at work while this scheduler leads; refuses requests while it does not."""

    def __init__(
        self, config: SchedulerConfig, node: Node, presence: Presence, leadership: Leadership, model: str
    ) -> None:
        self.config = config
        self.core = Core(config.settings, node.rng.getrandbits(64))
        self.leading = False
        self.links = Links(node, presence)
        self.answers = Answers(node)
        self.neighbours = Neighbours(self.links, presence, leadership, self, self.profile)
        self.passes = Passes()
        self._node = node
        self._presence = presence
        self._model = model
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        node.on(Open, self._on_open)
        node.on(Cancel, self._on_cancel)
        node.on(Live, self._on_live)
        node.on(Flush, self._on_flush)
        node.on(Pin, self._on_pin)
        node.on(Unpin, self._on_unpin)
        node.on(Pins, self._on_pins)
        node.on(Radix, self._on_radix)
        node.on(KvWatch, self._on_watch)
        presence.on_gone(Role.GATEWAY, self._on_gateway_gone)

    def profile(self) -> Profile:
        """Ours: what the linked workers are, so that a detokeniser of another model is refused."""
        profiles = [link.peer_profile for link in self.neighbours.of(Role.WORKER)]
        if not profiles:
            return Profile(self._model)
        first = profiles[0]
        contexts = [worker.capacity for worker in self.core.workers.values()]
        return Profile(
            self._model,
            model_digest=first.model_digest,
            tokenizer_digest=first.tokenizer_digest,
            sampler=first.sampler,
            context_length=min(contexts, default=0),
            vocab_size=first.worker.vocab_size if first.worker is not None else 0,
        )

    async def run(self) -> None:
        """Lead until cancelled. What was going on is then forgotten here: who leads next is told by the gateways."""
        self.leading = True
        self.core.recovery.begin((peer.instance for peer in self._presence.peers(Role.GATEWAY)), anyio.current_time())
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self.neighbours.run)
                await self._decide()
        finally:
            self.leading = False
            self._tasks = None
            self.core = Core(self.config.settings, self._node.rng.getrandbits(64))
            self._idle.set()

    async def finished(self) -> None:
        """Return when no request is live."""
        while self.core.life.live:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def _decide(self) -> None:
        connected = self._node.bus.connected_since
        while True:
            self._wake = anyio.Event()
            now = anyio.current_time()
            if connected != self._node.bus.connected_since:
                connected = self._node.bus.connected_since
                self.core.events.interrupted()
            self.core.events.paused = len(self.answers) > MOST_UNSENT
            with self.passes.timed():
                self._act(self.core.decide(now))
            if not self.core.life.live:
                self._idle.set()
            until = self.core.next_wakeup(now)
            with anyio.move_on_after(None if until is None else until - now):
                await self._wake.wait()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendPlan():
                    self._send_plan(action)
                case PublishKv(message):
                    self.answers.send(KV, message)
                case SendOutput():
                    self._send_output(action)
                case Reply(ticket, message):
                    assert isinstance(ticket, Received)
                    _note(message)
                    self.answers.reply(ticket, message)
                case AskCompile(spec, rid):
                    assert self._tasks is not None
                    self._tasks.start_soon(self._compile, spec, rid)
                case SendLost(gateway, rids, reason, attempts):
                    for rid in rids:
                        _log.info("handed back to gateway %s: %s", gateway, reason, extra=about(rid))
                    self.answers.send(gateway, Lost(rids, reason, attempts))
                case NewSession(worker, reason):
                    _log.warning("worker %s starts anew: %s", worker, reason)
                    self.neighbours.renew(Role.WORKER, worker)

    def _send_plan(self, action: SendPlan) -> None:
        """A link that is closed says so by `unlinked`, which takes the plan back."""
        link = self.neighbours.get(Role.WORKER, action.worker)
        try:
            if link is not None:
                link.send(action.plan)
        except LinkClosed:
            pass
        except PayloadTooLarge as error:
            self.core.step_failed(action.worker, action.plan.step, str(error))
            self._wake.set()

    def _send_output(self, action: SendOutput) -> None:
        link = self.neighbours.get(Role.TOKENIZER, action.detokeniser)
        try:
            if link is not None:
                link.send(action.output)
        except LinkClosed:
            pass
        except PayloadTooLarge as error:
            for rid in dict.fromkeys(frame.rid for frame in action.output.frames):
                _log.warning("output can't be sent: %s", error, extra=about(rid))
            self.core.undeliverable(action.output)
            self._wake.set()

    async def _compile(self, spec: GrammarSpec, rid: bytes) -> None:
        verdict = await judge(self._presence, spec, rid, self.config.compile_timeout_s)
        self.core.verdict(spec, verdict)
        self._wake.set()

    # --- Links ------------------------------------------------------------------------------------------------------------

    def linked(self, link: Link) -> None:
        """See `neighbours.Owner`."""
        if link.peer_role is Role.TOKENIZER:
            self.core.detokeniser_joined(link.peer_instance)
        elif link.peer_profile.worker is None:
            _log.error("worker %s does not say what it is", link.peer_instance)
        else:
            try:
                self.core.worker_joined(link.peer_instance, link.peer_profile.worker)
            except BadProfile as problem:
                _log.error("worker %s can't be used: %s", link.peer_instance, problem)
        self._wake.set()

    def unlinked(self, link: Link) -> None:
        """See `neighbours.Owner`."""
        if link.peer_role is Role.TOKENIZER:
            self.core.detokeniser_gone(link.peer_instance)
        else:
            self.core.worker_gone(link.peer_instance)
        self._wake.set()

    def heard(self, link: Link, message: Any) -> None:
        """See `neighbours.Owner`."""
        match message:
            case Result():
                self.core.result(link.peer_instance, message)
            case StepFailed(step, text):
                _log.error("worker %s failed at step %d: %s", link.peer_instance, step, text)
                self.core.step_failed(link.peer_instance, step, text)
            case StopAt():
                self.core.stop_at(message)
        self._wake.set()

    # --- Gateways -----------------------------------------------------------------------------------------------------------

    def _on_open(self, received: Received[Open]) -> None:
        message = received.message
        if not self.leading:
            self.answers.reply(received, OpenReply(message.rid, message.attempt, NOT_LEADING))
            return
        self.core.open(message, received, anyio.current_time())
        self._wake.set()

    def _on_cancel(self, received: Received[Cancel]) -> None:
        if self.leading:
            _log.debug("let go by its gateway", extra=about(received.message.rid))
            self.core.cancel(received.message, anyio.current_time())
            self._wake.set()

    def _on_live(self, received: Received[Live]) -> None:
        if self.leading:
            sender, now = received.sender, anyio.current_time()
            reply = self.core.live(sender.instance, received.message, now, sender.incarnation)
            self._wake.set()
        else:
            reply = LiveReply(part=received.message.part)
        self.answers.reply(received, reply)

    def _on_flush(self, received: Received[Flush]) -> None:
        if self.leading:
            self.core.flush(received.message.timeout_ms, received, anyio.current_time())
            self._wake.set()
        else:
            self.answers.reply(received, FlushReply(error=NOT_LEADING))

    # --- Caches -------------------------------------------------------------------------------------------------------------

    def _on_pin(self, received: Received[Pin]) -> None:
        if self._leads(received, PinReply(error=NOT_LEADING)):
            self.core.pin(received.message, received, anyio.current_time())

    def _on_unpin(self, received: Received[Unpin]) -> None:
        if self._leads(received, PinReply(error=NOT_LEADING)):
            self.core.unpin(received.message, received, anyio.current_time())

    def _on_pins(self, received: Received[Pins]) -> None:
        if self._leads(received, PinsReply()):
            self.core.list_pins(received.message, received, anyio.current_time())

    def _on_radix(self, received: Received[Radix]) -> None:
        if self._leads(received, RadixReply(error=NOT_LEADING)):
            self.core.radix(received.message, received)

    def _on_watch(self, received: Received[KvWatch]) -> None:
        if self._leads(received, KvWatchReply(error=NOT_LEADING)):
            self.core.watch(received.message, received, anyio.current_time())

    def _leads(self, received: Received[Any], otherwise: Answer) -> bool:
        """Whether the core is to answer this call, and wakes the loop for it; the answer is ``otherwise`` if not."""
        if self.leading:
            self._wake.set()
        else:
            self.answers.reply(received, otherwise)
        return self.leading

    def _on_gateway_gone(self, peer: Peer) -> None:
        self.core.gateway_gone(peer.instance, anyio.current_time())
        self._wake.set()


def _note(message: Answer) -> None:
    """A log line for the answer to an `open`."""
    if not isinstance(message, OpenReply):
        return
    if message.error is None:
        _log.debug("attempt %d is taken", message.attempt, extra=about(message.rid))
    else:
        _log.info("attempt %d is refused: %s", message.attempt, message.error.message, extra=about(message.rid))
