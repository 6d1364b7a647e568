"""The tokenizer service on the bus: receives, lets the cores decide, sends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import anyio
from anyio.abc import TaskGroup
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from phloem_bus.errors import BusError, ConfigError, LinkClosed
from phloem_bus.link import Link, Links
from phloem_bus.log import about
from phloem_bus.node import Node, Received
from phloem_bus.presence import Peer, Presence
from phloem_bus.service import ServiceContext
from phloem_model import ModelError, ModelFiles, resolve
from phloem_proto.messages import (
    Cancel,
    Detokenize,
    Detokenized,
    Encode,
    Encoded,
    ErrorInfo,
    Hello,
    Live,
    Load,
    Lost,
    OpenReply,
    OpenStream,
    Output,
    Profile,
    TokenizerInbox,
)
from phloem_proto.subjects import Role
from phloem_tokenizer.config import TokenizerConfig
from phloem_tokenizer.core import TokenizerCore
from phloem_tokenizer.desk import BUSY, Desk
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.routes import GatewayRoutes
from phloem_tokenizer.streams import Effects, Streams

LINK_WAIT_S = 1.0  # a request's open may come before our link to its gateway is up
HAND_BACK_S = 2.0  # of a drain: what is still live then goes back to its gateways
GOODBYE_S = 1.0
OVERDUE_CHECK_S = 1.0  # a look at every stream, below a millisecond in all
MAX_OPENS = 1024  # opens being answered at once; each waits at most LINK_WAIT_S
MAX_LOST = 1024  # notices to gateways waiting to be sent; beyond it a gateway finds out by its reconcile

_log = logging.getLogger("phloem.tokenizer")


class TokenizerService:
    """See `phloem_bus.service.Service`. `clock` is the wall time that chat templates may show."""

    role = Role.TOKENIZER

    def __init__(self, config: TokenizerConfig, clock: Callable[[], datetime] = datetime.now) -> None:
        self._config = config
        self._clock = clock

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until drained or cancelled. Raises ConfigError if the model can't be had."""
        try:
            files = await ctx.offload(lambda: resolve(self._config.model))
            core = await ctx.offload(lambda: TokenizerCore(files, ctx.model))
        except ModelError as error:
            raise ConfigError("--model", str(error), error.exit_code) from error
        await _Running(self._config, ctx, files, core, self._clock).run()


class _Running:
    """One run of the service: everything that lives as long as its place on the bus."""

    def __init__(
        self,
        config: TokenizerConfig,
        ctx: ServiceContext,
        files: ModelFiles,
        core: TokenizerCore,
        clock: Callable[[], datetime],
    ) -> None:
        self._ctx = ctx
        self._profile: Profile = core.profile
        self._node: Node = ctx.node()
        self._presence = Presence(
            self._node,
            tells=[Role.GATEWAY, Role.SCHEDULER],
            watches=[Role.GATEWAY, Role.SCHEDULER],
            profile=lambda: self._profile,
            load=self._load,
        )
        self._links = Links(self._node, self._presence)
        self._streams = Streams(core.vocabulary, files.eos_ids, config.max_streams)
        self._routes = GatewayRoutes(self._links, self._presence, lambda: self._profile, self._gateway_lost, self._hear)
        self._desk = Desk(core, ctx.offload, ctx.bus.max_payload, clock)
        self._desk.on_done = self._note_idle
        self._config = config
        self._draining = False
        self._idle = anyio.Event()
        self._lost_out, self._lost_in = anyio.create_memory_object_stream[tuple[str, Lost]](MAX_LOST)
        ctx.registry.register(_Metrics(self._totals, self._streams))

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._register(tasks)
                await tasks.start(self._node.run, TokenizerInbox)
                tasks.start_soon(self._presence.run)
                tasks.start_soon(self._links.run)
                tasks.start_soon(self._send_lost)
                tasks.start_soon(self._drop_overdue)
                self._presence.set_state("ready")
                self._ctx.ready(True)
                await self._ctx.drain.wait()
                await self._drain()
                tasks.cancel_scope.cancel()
        finally:
            self._lost_out.close()
            self._lost_in.close()
            with anyio.move_on_after(GOODBYE_S, shield=True):
                await self._presence.goodbye()

    def _register(self, tasks: TaskGroup) -> None:
        node, limit = self._node, self._config.max_calls
        node.serve(Encode, self._desk.encode, limit=limit, busy=lambda _: Encoded(error=BUSY))
        node.serve(Detokenize, self._desk.detokenize, limit=limit, busy=lambda _: Detokenized(error=BUSY))
        node.serve(OpenStream, self._open, limit=MAX_OPENS, busy=_too_many_opens)
        node.on(Cancel, lambda received: self._cancel(received.message))
        self._links.accept(
            Role.SCHEDULER,
            receives=Output,
            profile=lambda: self._profile,
            admit=self._admit,
            on_open=lambda link: None,
            on_message=self._take,
            on_gone=lambda link: None,  # its requests come back through their gateways, with a higher attempt
        )

        def gateway_joined(peer: Peer) -> None:
            tasks.start_soon(self._routes.run_for, peer)

        self._presence.on_join(Role.GATEWAY, gateway_joined)
        self._presence.on_gone(Role.GATEWAY, lambda peer: self._gateway_lost(peer.instance))

    # --- What comes in ---

    async def _admit(self, _: Received[Hello]) -> ErrorInfo | None:
        return ErrorInfo("draining", "this tokenizer is shutting down") if self._draining else None

    async def _open(self, received: Received[OpenStream]) -> OpenReply:
        reply = await self._opened(received.message)
        if reply.error is None:
            _log.debug("attempt %d is taken", reply.attempt, extra=about(reply.rid))
        else:
            _log.info("attempt %d is refused: %s", reply.attempt, reply.error.message, extra=about(reply.rid))
        return reply

    async def _opened(self, request: OpenStream) -> OpenReply:
        if self._draining:
            error = ErrorInfo("draining", "this tokenizer is shutting down")
            return OpenReply(request.rid, request.attempt, error)
        if not await self._routes.wait_for(request.gateway, LINK_WAIT_S):
            error = ErrorInfo("unavailable", "there is no link to the gateway yet", retry_after_ms=1000)
            return OpenReply(request.rid, request.attempt, error)
        try:
            effects = self._streams.open(request, anyio.current_time())
        except Refused as refusal:
            return OpenReply(request.rid, request.attempt, refusal.info)
        self._send(effects)
        return OpenReply(request.rid, request.attempt)

    def _hear(self, gateway: str, message: Cancel | Live) -> None:
        """What a gateway says over its link."""
        if isinstance(message, Cancel):
            self._cancel(message)
            return
        dropped = self._streams.named(gateway, message)
        if dropped:
            _log.warning("dropped %d streams that gateway %s does not hold", dropped, gateway)
            self._note_idle()

    def _cancel(self, cancel: Cancel) -> None:
        _log.debug("let go by its gateway", extra=about(cancel.rid))
        self._streams.cancel(cancel, anyio.current_time())
        self._note_idle()

    def _take(self, link: Link, output: Output) -> None:
        effects = self._streams.take(output)
        for stop in effects.stops:
            try:
                link.send(stop)
            except LinkClosed:
                break  # that scheduler is gone, and its requests with it
        self._send(effects)

    def _gateway_lost(self, gateway: str) -> None:
        dropped = self._streams.drop_gateway(gateway)
        if dropped:
            _log.info("dropped %d streams of gateway %s", dropped, gateway)
        self._note_idle()

    async def _drop_overdue(self) -> None:
        while True:
            await anyio.sleep(OVERDUE_CHECK_S)
            dropped = self._streams.drop_overdue(anyio.current_time())
            if dropped:
                _log.warning("dropped %d streams past their deadline: nobody cancelled them", dropped)
                self._note_idle()

    # --- What goes out ---

    def _send(self, effects: Effects) -> None:
        for gateway, frames in effects.text.items():
            self._routes.send(gateway, frames)
        self._tell_lost(effects.lost, "a part of the output did not arrive")

    def _tell_lost(self, lost: Mapping[str, Mapping[bytes, int]], reason: str) -> None:
        for gateway, attempts in lost.items():
            for rid in attempts:
                _log.info("handed back to gateway %s: %s", gateway, reason, extra=about(rid))
            try:
                self._lost_out.send_nowait((gateway, Lost(tuple(attempts), reason, tuple(attempts.values()))))
            except anyio.WouldBlock:
                _log.warning("too many notices wait for gateway %s", gateway)

    async def _send_lost(self) -> None:
        async for gateway, lost in self._lost_in:
            try:
                await self._node.send(Role.GATEWAY, gateway, lost)
            except BusError as error:
                _log.warning("gateway %s was not told of %d lost requests: %s", gateway, len(lost.rids), error)

    # --- Drain ---

    async def _drain(self) -> None:
        """Let live requests finish; hand back those that do not, so that their gateways open them elsewhere."""
        self._draining = True
        self._presence.set_state("draining")
        self._ctx.ready(False)
        self._note_idle()
        with anyio.move_on_after(max(0.0, self._ctx.drain_s - HAND_BACK_S)):
            await self._idle.wait()
        lost = self._streams.hand_back()
        for gateway, attempts in lost.items():
            for rid in attempts:
                _log.info("handed back to gateway %s: shutting down", gateway, extra=about(rid))
            told = Lost(tuple(attempts), "the tokenizer shuts down", tuple(attempts.values()))
            try:
                await self._node.send(Role.GATEWAY, gateway, told)
            except BusError as error:
                _log.warning("gateway %s was not told of %d lost requests: %s", gateway, len(attempts), error)

    def _note_idle(self) -> None:
        if self._draining and not len(self._streams) and not self._desk.open:
            self._idle.set()

    # --- What is told of it ---

    def _load(self) -> Load:
        return Load(
            in_flight=self._desk.open + len(self._streams),
            capacity=self._config.max_streams,
            running=len(self._streams),
            waiting=self._desk.open,
            counters={
                "phloem_tokenizer_streams_live": float(len(self._streams)),
                **{f"phloem_tokenizer_{name}_total": float(count) for name, count in self._totals().items()},
            },
        )

    def _totals(self) -> dict[str, int]:
        ignored = {f"ignored_{reason}_frames": count for reason, count in sorted(self._streams.ignored.items())}
        return dict(self._desk.counters) | ignored


def _too_many_opens(request: OpenStream) -> OpenReply:
    error = ErrorInfo("busy", "too many requests are being opened", retry_after_ms=1000)
    return OpenReply(request.rid, request.attempt, error)


class _Metrics(Collector):
    """The service's totals and its live streams, for Prometheus."""

    def __init__(self, totals: Callable[[], dict[str, int]], streams: Streams) -> None:
        self._totals = totals
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        for name, count in self._totals().items():
            yield CounterMetricFamily(f"phloem_tokenizer_{name}", f"Total of {name.replace('_', ' ')}", value=count)
        yield GaugeMetricFamily("phloem_tokenizer_streams", "Live requests being detokenised", value=len(self._streams))
