"""`NatsBus`: the bus over a NATS server. asyncio only: this is one of the three edges (with uvicorn and grpc.aio) that may be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import anyio
import nats.errors
from anyio.lowlevel import checkpoint_if_cancelled
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from .bus import RawMessage
from .errors import ConfigError, Disconnected, NotAllowed, PayloadTooLarge
from .mailbox import Mailbox
from .nats_client import PENDING_BYTES, NatsOptions, Refused, close_client, open_client, round_trip, violation
from .nats_requests import Requests
from .patterns import check_subject

_log = logging.getLogger("phloem.bus")

RETRY_S = 0.05
RETRY_MAX_S = 1.0
"""Between attempts to connect, doubling."""
WATCH_S = 0.25
"""How often the client's state is looked at; nats-py does not report every loss."""
FLUSH_S = 2.0
STALL_BYTES = PENDING_BYTES // 4
"""Unsent bytes above which a publisher waits: two messages of the largest size."""
STALL_S = 1.0
"""How long it waits before the connection counts as lost."""
_COMPLAINTS = 256
"""Subjects that the server forbade us and that were logged; further ones are only counted."""


class _NatsMailbox(Mailbox):
    """A subscription that outlives the client it was made on."""

    def __init__(self, bus: NatsBus, subject: str, queue: str | None, capacity: int) -> None:
        super().__init__(capacity)
        self.subject = subject
        self.queue = queue
        self.handle: NatsSubscription | None = None
        self.refused = False
        self._bus = bus

    async def attach(self, client: Client) -> None:
        """Subscribe on ``client``. Messages only go into the mailbox: the reader must never wait for a consumer."""
        self.handle = await client.subscribe(self.subject, queue=self.queue or "", cb=self._take)

    async def _take(self, message: Msg) -> None:
        self.put(RawMessage(message.subject, message.data, message.reply or None))

    async def aclose(self) -> None:
        if self.closed:
            return
        self.end()
        await self._bus.detach(self)


class NatsBus:
    """A `Bus` over NATS. Make it with `connect`, end it with `aclose`.

    A lost connection is replaced by a new client with the same subscriptions; meanwhile publishing raises `Disconnected`.
    """

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._ready = False
        self._closed = False
        self._connected_since = anyio.current_time()
        self._max_payload = 0
        self._lost = asyncio.Event()
        self._mailboxes: list[_NatsMailbox] = []
        self._requests = Requests(options.inbox)
        self._supervisor: asyncio.Task[None] | None = None
        self._complaints: dict[tuple[str, str], None] = {}
        self._violations = 0
        self.reconnections = 0

    @classmethod
    async def connect(
        cls, options: NatsOptions, *, on_wait: Callable[[str], None] = lambda _: None, wait: bool = True
    ) -> NatsBus:
        """Connect; waits for a broker that isn't there yet.

        Args:
            on_wait: called once with the reason when the first attempt fails.
            wait: False: return after the first attempt, and connect in the background if it failed.

        Raises:
            ConfigError: an option can't be used.
            Refused: the broker does not let this user in.
        """
        bus = cls(options)
        try:
            await bus._open(on_wait, final=(Refused, ConfigError), once=not wait)
        except Disconnected:
            _log.debug("connecting in the background")
        bus._supervisor = asyncio.create_task(bus._supervise(), name="nats supervisor")
        return bus

    @property
    def max_payload(self) -> int:
        return self._max_payload

    @property
    def connected(self) -> bool:
        return self._ready and self._client is not None and self._client.is_connected

    @property
    def violations(self) -> int:
        return self._violations

    @property
    def connected_since(self) -> float:
        return self._connected_since

    async def publish(self, subject: str, data: bytes, *, reply: str | None = None) -> None:
        """As `Bus.publish`. Waits up to ``STALL_S`` when the server takes bytes more slowly than we have them."""
        await checkpoint_if_cancelled()
        check_subject(subject, wildcards=False)
        client = self._usable()
        if len(data) > self._max_payload:  # we send no headers, which the server would count as well
            raise PayloadTooLarge(len(data), self._max_payload)
        if client.pending_data_size > STALL_BYTES:
            await self._wait_for_room(client)
        try:
            await client.publish(subject, data, reply=reply or "")
        except nats.errors.Error as error:
            raise Disconnected(str(error)) from error

    async def subscribe(self, subject: str, *, queue: str | None = None, capacity: int = 4096) -> Mailbox:
        """As `Bus.subscribe`.

        Raises:
            Disconnected: there is no connection.
            NotAllowed: the broker forbids this user that subject.
            ValueError: it is no subject.
        """
        check_subject(subject, wildcards=True)
        mailbox = _NatsMailbox(self, subject, queue, capacity)
        client = self._usable()
        self._mailboxes.append(mailbox)
        try:
            await mailbox.attach(client)
            await self.flush()
            if mailbox.refused:
                raise NotAllowed(f"the broker forbids this user to receive {subject}")
        except BaseException as error:
            await mailbox.aclose()
            if isinstance(error, nats.errors.Error):
                raise Disconnected(str(error)) from error
            raise
        return mailbox

    async def request(self, subject: str, data: bytes, *, timeout: float) -> bytes:
        with self._requests.waiter() as waiter:
            with anyio.move_on_after(timeout):
                await self.publish(subject, data, reply=waiter.inbox)
                await waiter.arrived.wait()
            return waiter.result(subject, timeout)

    async def flush(self) -> None:
        client = self._usable()
        try:
            with anyio.fail_after(FLUSH_S):
                await round_trip(client)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Disconnected("the broker does not answer") from error

    async def aclose(self) -> None:
        """Close within some seconds: what was published is flushed first if the broker takes it."""
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        if self.connected:
            try:
                await self.flush()
            except Disconnected:
                pass
        self._ready = False
        if self._client is not None:
            await close_client(self._client)
        for mailbox in self._mailboxes:
            mailbox.end()
        self._mailboxes.clear()

    async def detach(self, mailbox: _NatsMailbox) -> None:
        """Forget a closed subscription."""
        if mailbox in self._mailboxes:
            self._mailboxes.remove(mailbox)
        if mailbox.handle is not None and self.connected:
            try:
                await mailbox.handle.unsubscribe()
            except nats.errors.Error:
                pass  # the connection went meanwhile, and the subscription with it

    def _usable(self) -> Client:
        if not self.connected or self._client is None:
            raise Disconnected("no connection to NATS")
        return self._client

    async def _wait_for_room(self, client: Client) -> None:
        with anyio.move_on_after(STALL_S):
            # nats-py tells nobody when its buffer empties.
            while client.pending_data_size > STALL_BYTES and client.is_connected:  # noqa: ASYNC110
                await anyio.sleep(0.005)
            return
        _log.warning("NATS took nothing for %g s; connecting anew", STALL_S)
        self._ready = False
        self._lost.set()
        raise Disconnected("the broker takes nothing")

    # --- the connection ---

    async def _supervise(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._lost.wait(), WATCH_S)
            except TimeoutError:
                pass
            if self.connected and not self._lost.is_set():
                continue
            had_one = self._max_payload > 0  # else the first attempt failed, and we were not to wait
            if had_one:
                _log.warning("lost the connection to NATS at %s", self._options.url)
            self._ready = False
            await self._discard()
            await self._open(lambda reason: _log.debug("NATS: %s", reason), final=())
            self.reconnections += had_one
            _log.info("connected to NATS at %s", self._options.url)

    async def _open(
        self, on_wait: Callable[[str], None], *, final: tuple[type[Exception], ...], once: bool = False
    ) -> None:
        """Connect and subscribe, however long it takes and whatever goes wrong, but for what ``final`` names.

        With ``once`` a first attempt that fails raises `Disconnected`.
        """
        pause = RETRY_S
        waited = False
        while True:
            try:
                await self._try_open()
                return
            except final:
                raise
            except Exception as error:
                reason = str(error) or type(error).__name__
            await self._discard()
            if not waited:
                on_wait(reason)
                waited = True
            if once:
                raise Disconnected(reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    async def _try_open(self) -> None:
        self._lost = lost = asyncio.Event()

        async def on_closed() -> None:
            lost.set()

        client = self._client = await open_client(self._options, on_closed=on_closed, on_error=self._on_error)
        await client.subscribe(self._requests.pattern, cb=self._requests.on_reply)
        for mailbox in list(self._mailboxes):
            await mailbox.attach(client)
        with anyio.fail_after(FLUSH_S):
            await round_trip(client)
        self._max_payload = client.max_payload
        self._connected_since = anyio.current_time()
        self._ready = True

    async def _discard(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await close_client(client)

    # --- what the client calls ---

    async def _on_error(self, error: Exception) -> None:
        forbidden = violation(error)
        if forbidden is None:
            _log.debug("nats-py: %s", error)
            return
        self._violations += 1
        kind, subject = forbidden
        for mailbox in self._mailboxes:
            if kind == "subscription" and mailbox.subject.lower() == subject:
                mailbox.refused = True
        if forbidden not in self._complaints and len(self._complaints) < _COMPLAINTS:
            self._complaints[forbidden] = None
            _log.error("the broker forbids this user a %s to %s", kind, subject)
