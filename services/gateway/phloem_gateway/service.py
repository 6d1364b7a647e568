"""The gateway as a service: bus, edges, readiness and drain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskGroup
from starlette.types import ASGIApp

from phloem_bus.errors import ConfigError
from phloem_bus.garbage import collect_when_idle
from phloem_bus.link import Link, Links
from phloem_bus.node import Node, Received
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_proto.messages import ErrorInfo, GatewayInbox, Hello, Load, Lost, Profile, Text
from phloem_proto.subjects import Role

from . import http_app
from .auth import Keys
from .config import GatewayConfig, read_keys
from .gateway import Gateway
from .grpc_server import GrpcServer
from .http_server import HttpServer
from .listening import address
from .metrics import Metrics, PeerLoad

WATCH_S = 0.1
"""How often readiness is looked at."""
CLOSE_S = 2.0
"""After a drain, how long connections may take to close."""
COLLECT_S = 600.0
"""Between full garbage collections while requests always are live: one takes 80 ms with ten thousand of them. grpc.aio leaves some 1 KB of
cycles with each call, 60 MB in that time at a hundred calls per second."""
_log = logging.getLogger("phloem.gateway")


class GatewayService:
    """HTTP and gRPC edges over the bus.

    Args:
        alone: it has the process to itself, and so decides when garbage is collected.

    Attributes:
        app: the ASGI application, once `listening`; it can be called directly (no HTTP server runs where ``http_port`` is None).
        gateway: the working parts, once `listening`.
        http_port, grpc_port: the real ports, once `listening`; None where that edge is not served.
        listening: set when the edges accept calls.

    Raises:
        ConfigError: the API key file can't be used.
    """

    role = Role.GATEWAY

    def __init__(self, config: GatewayConfig, *, alone: bool = False) -> None:
        self.config = config
        self._alone = alone
        self.listening = anyio.Event()
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self.app: ASGIApp
        self.gateway: Gateway
        self._keys = Keys(read_keys(config.api_keys_file))

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until drained. Raises `ConfigError` when a port can't be used."""
        node = ctx.node()
        both = (Role.SCHEDULER, Role.TOKENIZER)
        profile = Profile(ctx.model)
        presence = Presence(node, tells=both, watches=both, profile=lambda: profile, load=self._load)
        links = Links(node, presence)
        metrics = Metrics(ctx.registry)
        ctx.registry.register(PeerLoad(lambda: [*presence.peers(Role.SCHEDULER), *presence.peers(Role.TOKENIZER)]))
        self.gateway = gateway = Gateway(self.config, presence, ctx.model, metrics, ctx.rng)
        self.app = http_app.build(gateway, self._keys, ctx.rng, self.config.cors_origins)
        http, grpc = self._edges(ctx)
        self._connect(links)
        presence.on_gone(Role.SCHEDULER, gateway.on_scheduler_gone)
        presence.on_join(Role.SCHEDULER, lambda _: gateway.on_scheduler_change())
        presence.on_change(Role.SCHEDULER, lambda _: gateway.on_scheduler_change())
        node.on(Lost, lambda received: gateway.on_lost(received.message))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._join, tasks, node, presence.run, links.run, gateway.run)
            if self._alone:
                tasks.start_soon(collect_when_idle, lambda: not gateway.core.live, COLLECT_S)
            presence.set_state("ready")
            async with anyio.create_task_group() as edges:
                self._start(edges, http, grpc)
                edges.start_soon(self._watch, ctx, grpc)
                await ctx.drain.wait()
                await self._drain(ctx, presence, grpc)
                for edge in (http, grpc):
                    if edge is not None:
                        edge.stop()
            await presence.goodbye()
            tasks.cancel_scope.cancel()

    @staticmethod
    async def _join(tasks: TaskGroup, node: Node, *background: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Take part on the bus as soon as it can be reached; until then every request is refused as unavailable."""
        await tasks.start(node.run, GatewayInbox)
        for each in background:
            tasks.start_soon(each)

    def _load(self) -> Load:
        return Load(in_flight=len(self.gateway.core.live), capacity=self.config.max_live)

    def _edges(self, ctx: ServiceContext) -> tuple[HttpServer | None, GrpcServer | None]:
        """Bind both ports, so that a port in use is told before anything else starts."""
        config = self.config
        http = grpc = None
        if config.http_port is not None:
            responses = self.gateway.metrics.responses
            http = HttpServer(
                self.app, config.http_host, config.http_port, config.head_timeout_s,
                lambda status: responses.labels("other", str(status)).inc(), CLOSE_S,
            )  # fmt: skip
            self.http_port = http.port
        if config.grpc_port is not None:
            try:
                grpc = GrpcServer(self.gateway, self._keys, ctx.rng, config, CLOSE_S)
            except ConfigError:
                if http is not None:
                    http.close()
                raise
            self.grpc_port = grpc.port
        return http, grpc

    def _start(self, edges: TaskGroup, http: HttpServer | None, grpc: GrpcServer | None) -> None:
        if http is not None:
            edges.start_soon(http.run)
            _log.info("HTTP on http://%s", address(self.config.http_host, http.port))
        if grpc is not None:
            edges.start_soon(grpc.run)
            _log.info("gRPC on %s", address(self.config.grpc_host, grpc.port))
        self.listening.set()

    def _connect(self, links: Links) -> None:
        """Accept links from detokenisers: their text comes over them."""
        gateway = self.gateway

        async def admit(hello: Received[Hello]) -> ErrorInfo | None:
            return ErrorInfo("draining", "this gateway is shutting down") if gateway.backends.draining else None

        def opened(link: Link) -> None:
            gateway.backends.links[link.peer_instance] = link

        def gone(link: Link) -> None:
            if gateway.backends.links.get(link.peer_instance) is link:
                del gateway.backends.links[link.peer_instance]
            gateway.on_detokeniser_gone(link.peer_instance)

        links.accept(
            Role.TOKENIZER,
            receives=Text,
            profile=lambda: Profile(gateway.backends.model),
            admit=admit,
            on_open=opened,
            on_message=gateway.on_text,
            on_gone=gone,
        )

    async def _watch(self, ctx: ServiceContext, grpc: GrpcServer | None) -> None:
        """Tell readiness when it changes, until the drain begins."""
        known: str | None = ""
        while not ctx.drain.is_set():
            trouble = self.gateway.backends.trouble()
            if trouble != known:
                known = trouble
                _log.info("ready" if trouble is None else "not ready: %s", *(() if trouble is None else (trouble,)))
                ctx.ready(trouble is None)
                if grpc is not None:
                    await grpc.set_ready(trouble is None)
            await anyio.sleep(WATCH_S)

    async def _drain(self, ctx: ServiceContext, presence: Presence, grpc: GrpcServer | None) -> None:
        """Not ready first, then let calls finish; what is left after the time for it ends with an error."""
        self.gateway.backends.draining = True
        ctx.ready(False)
        if grpc is not None:
            await grpc.set_ready(False)
        presence.set_state("draining")
        self.gateway.kv.close("The server is shutting down.")
        with anyio.move_on_after(ctx.drain_s):
            await self.gateway.wait_idle()
        self.gateway.end_all("The server is shutting down.")
