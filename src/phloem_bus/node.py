"""A service's place on the bus: typed messages in and out under its role and instance."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint_if_cancelled

from phloem_proto import subjects
from phloem_proto.codec import PROTOCOL_MIN, Codec, Sender, encode
from phloem_proto.messages import Message
from phloem_proto.senders import may_send
from phloem_proto.subjects import Role

from .bus import Bus, RawMessage, Subscription
from .errors import BusError, Disconnected, NoPeer, PayloadTooLarge

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)

_log = logging.getLogger("phloem.bus")

INBOX_CAPACITY = 16384
"""Messages a node's subscription may hold: seconds of traffic at the rates of a busy service; what doesn't fit is resent by links."""
RECONNECT_S = 0.05
"""Between looks at a bus that can't be reached at the start."""
_SUBJECTS = 4096
"""Subjects remembered per node, far above the live instances; the memory is emptied when they exceed it."""
_REFUSALS = 1024
"""Answers "busy" under way at once per kind; beyond that a call gets none, and its caller times out."""
_ROLES = frozenset(role.value for role in Role)
_TURN = 256
"""Messages handled before other tasks get a turn: some milliseconds of work."""


def _credible(sender: Sender, subject: str) -> bool:
    """Whether ``sender`` is whom the subject allows, and could be answered: handlers may build a subject from it."""
    role = subject.rpartition(".")[2]
    return (
        sender.role == role
        and role in _ROLES
        and sender.instance != subjects.ALL
        and subjects.is_token(sender.instance)
    )


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """A decoded message and who sent it. ``reply`` is where an answer to a call goes."""

    message: M
    sender: Sender
    reply: str | None = None


@dataclass(slots=True)
class _Served:
    """How calls of one kind are answered."""

    handler: Callable[[Received[Any]], Awaitable[Message]]
    limit: int
    busy: Callable[[Any], Message]
    running: int = 0
    refusing: int = 0


class Node:
    """Sends and receives typed messages as one instance of one role.

    It listens on its own subject and on the broadcast subject of its role. What can't be decoded, names another sender than its subject
    allows, is not that role's to say, or wants its answer where that role does not wait for one, is dropped and counted in ``refused`` (by
    reason: ``malformed``, ``version``, ``sender``, ``reply``, ``unhandled``, ``no_reply``, ``busy``; links add ``session``, ``term``,
    ``incarnation``, ``numbers`` and ``duplicate``, presence ``stale`` and ``peers``). A handler that raises is logged and counted as
    ``failed``; the loop goes on.

    Args:
        bus: the connection.
        role, instance, incarnation: who we are; ``incarnation`` is random per process start.
        namespace, model: subject tokens (``model`` already slugged).
        rng: for jitter and sessions.
    """

    def __init__(
        self, bus: Bus, *, role: Role, instance: str, incarnation: int, namespace: str, model: str, rng: random.Random
    ) -> None:
        self.bus = bus
        self.role = role
        self.instance = instance
        self.sender = Sender(role, instance, incarnation)
        self.namespace = namespace
        self.model = model
        self.rng = rng
        self.refused: dict[str, int] = {}
        self._handlers: dict[type[Any], list[Callable[[Received[Any]], None]]] = {}
        self._served: dict[type[Any], _Served] = {}
        self._subscriptions: list[Subscription] = []
        self._dropped_before = 0
        self._subjects: dict[tuple[Role, str], str] = {}
        self._replies: dict[type[Any], Codec[Any]] = {}

    @property
    def dropped(self) -> int:
        """Messages dropped because this node did not take them in time."""
        return self._dropped_before + sum(subscription.dropped for subscription in self._subscriptions)

    def refuse(self, reason: str) -> None:
        """Count a message that was dropped."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def on(self, kind: type[M], handler: Callable[[Received[M]], None]) -> None:
        """Call ``handler`` for each message of ``kind``, in order of arrival, from the dispatch loop. It must not block.

        Several handlers of one kind are called in order of registration.
        """
        self._handlers.setdefault(kind, []).append(handler)

    def serve(
        self,
        kind: type[M],
        handler: Callable[[Received[M]], Awaitable[Message]],
        *,
        limit: int,
        busy: Callable[[M], Message],
    ) -> None:
        """Answer calls of ``kind``: each runs in its own task, at most ``limit`` at once; beyond that ``busy(message)`` is the answer.

        A handler that raises is logged and counted; its caller gets no answer and times out.

        Raises:
            ValueError: ``kind`` is served already.
        """
        if kind in self._served:
            raise ValueError(f"{kind.__name__} is served already")
        self._served[kind] = _Served(handler, limit, busy)

    async def run(self, inbox: Any, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Subscribe and dispatch until cancelled. ``inbox`` is the union of what this role may receive (``messages.GatewayInbox`` ...).

        ``task_status`` is set once the broker has both subscriptions; a bus that is down is waited for.

        Raises:
            Disconnected: the bus was closed while this ran.
        """
        await self._listen((self.instance, subjects.ALL), inbox, task_status, self._subscribe_patiently)

    async def join(self, group: str, inbox: Any, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Also dispatch what is published to ``group`` of our role (`subjects.KV`), of the types in ``inbox``, until cancelled.

        For groups that are worth listening to only at times: `run` knows nothing of them. ``task_status`` is set as there.

        Raises:
            Disconnected, NotAllowed: as `Bus.subscribe`, or the bus was closed while this ran.
        """
        await self._listen((group,), inbox, task_status, self._subscribe)

    async def _subscribe(self, pattern: str) -> Subscription:
        return await self.bus.subscribe(pattern, capacity=INBOX_CAPACITY)

    async def _subscribe_patiently(self, pattern: str) -> Subscription:
        while True:
            try:
                return await self._subscribe(pattern)
            except Disconnected:
                await anyio.sleep(RECONNECT_S)

    async def _listen(
        self,
        instances: tuple[str, ...],
        inbox: Any,
        task_status: TaskStatus[None],
        subscribe: Callable[[str], Awaitable[Subscription]],
    ) -> None:
        codec: Codec[Any] = Codec(inbox)
        mine: list[Subscription] = []
        try:
            for instance in instances:
                pattern = subjects.inbox(self.namespace, self.model, self.role, instance)
                mine.append(await subscribe(pattern))
                self._subscriptions.append(mine[-1])
            async with anyio.create_task_group() as tasks:
                for subscription in mine:
                    tasks.start_soon(self._dispatch, subscription, codec, tasks)
                task_status.started()
            await checkpoint_if_cancelled()  # who closes the bus usually cancels us in the same breath
            raise Disconnected("the bus was closed")
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                for subscription in mine:
                    await subscription.aclose()
            for subscription in mine:
                self._subscriptions.remove(subscription)
                self._dropped_before += subscription.dropped

    async def send(self, to: Role, instance: str, message: msgspec.Struct) -> None:
        """Publish to one instance, or to ``subjects.ALL``.

        Raises:
            Disconnected, PayloadTooLarge: as `Bus.publish`.
            NoPeer: nobody can be called ``instance``: it is no token of a subject.
        """
        await self.bus.publish(self._subject(to, instance), encode(self.sender, message))

    async def call(self, to: Role, instance: str, message: Message, reply: type[R], *, timeout: float) -> R:
        """Send a call and wait for its reply.

        Raises:
            NoResponders, TimedOut, Disconnected, PayloadTooLarge: as `Bus.request`.
            NoPeer: as `send`.
            BusError: the reply can't be decoded, or comes from another role.
        """
        codec = self._replies.get(reply)
        if codec is None:
            codec = self._replies[reply] = Codec(reply)
        data = await self.bus.request(self._subject(to, instance), encode(self.sender, message), timeout=timeout)
        try:
            envelope = codec.decode(data)
        except msgspec.DecodeError as error:
            self.refuse("malformed")
            raise BusError(f"the reply of {to} {instance} is no {reply.__name__}: {error}") from error
        if envelope.sender.role != to:
            self.refuse("sender")
            raise BusError(f"the reply to a call to {to} came from a {envelope.sender.role}")
        answer: R = envelope.message
        return answer

    async def respond(self, received: Received[Any], message: Message) -> None:
        """Answer a call that came through `on`. Does nothing if the sender wants no reply or the bus is down.

        Raises:
            PayloadTooLarge: the answer can't travel on this bus.
        """
        if received.reply is None:
            return
        try:
            await self.bus.publish(received.reply, encode(self.sender, message))
        except Disconnected:
            _log.debug("no connection for an answer to %s %s", received.sender.role, received.sender.instance)

    async def _dispatch(self, subscription: Subscription, codec: Codec[Any], tasks: TaskGroup) -> None:
        while True:
            try:
                raw = await subscription.receive()
                for _ in range(_TURN):  # what has arrived, in one turn of the loop
                    self._handle(raw, codec, tasks)
                    raw = subscription.receive_nowait()
                self._handle(raw, codec, tasks)
            except anyio.WouldBlock:
                continue
            except anyio.EndOfStream:
                tasks.cancel_scope.cancel()
                return

    def _handle(self, raw: RawMessage, codec: Codec[Any], tasks: TaskGroup) -> None:
        received = self._decode(raw, codec)
        if received is None:
            return
        kind = type(received.message)
        served = self._served.get(kind)
        handlers = self._handlers.get(kind)
        if served is not None:
            self._start(served, received, tasks)
        elif handlers is None:
            self.refuse("unhandled")
        for handler in handlers or ():
            try:
                handler(received)
            except Exception:
                self.refuse("failed")
                _log.exception("handling %s failed", kind.__name__)

    def _decode(self, raw: RawMessage, codec: Codec[Any]) -> Received[Any] | None:
        try:
            envelope = codec.decode(raw.data)
        except msgspec.DecodeError:
            self.refuse("malformed")
            return None
        sender = envelope.sender
        if not _credible(sender, raw.subject) or not may_send(sender.role, type(envelope.message)):
            self.refuse("sender")
            return None
        if raw.reply is not None and not subjects.may_reply(raw.reply, sender.role):
            self.refuse("reply")
            return None
        if envelope.version < PROTOCOL_MIN:
            self.refuse("version")
            return None
        return Received(envelope.message, sender, raw.reply)

    def _start(self, served: _Served, received: Received[Any], tasks: TaskGroup) -> None:
        if received.reply is None:
            self.refuse("no_reply")
        elif served.running < served.limit:
            served.running += 1
            tasks.start_soon(self._answer, served, received)
        elif served.refusing < _REFUSALS:
            served.refusing += 1
            tasks.start_soon(self._answer_busy, served, received)
        else:
            self.refuse("busy")

    async def _answer(self, served: _Served, received: Received[Any]) -> None:
        try:
            await self.respond(received, await served.handler(received))
        except PayloadTooLarge as error:
            self.refuse("failed")
            _log.error("the answer to %s can't be sent: %s", type(received.message).__name__, error)
        except Exception:
            self.refuse("failed")
            _log.exception("answering %s failed", type(received.message).__name__)
        finally:
            served.running -= 1

    async def _answer_busy(self, served: _Served, received: Received[Any]) -> None:
        try:
            await self.respond(received, served.busy(received.message))
        except Exception:
            self.refuse("failed")
            _log.exception("answering %s failed", type(received.message).__name__)
        finally:
            served.refusing -= 1

    def _subject(self, to: Role, instance: str) -> str:
        key = (to, instance)
        subject = self._subjects.get(key)
        if subject is None:
            if len(self._subjects) >= _SUBJECTS:
                self._subjects.clear()
            if not subjects.is_token(instance):  # a name that came in a message
                raise NoPeer(f"no {to} can be called {instance[:64]!r}")
            subject = subjects.subject(self.namespace, self.model, to, instance, self.role)
            self._subjects[key] = subject
        return subject
