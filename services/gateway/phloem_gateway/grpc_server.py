"""The grpc.aio server: options, health, reflection, start and stop. asyncio only."""

from __future__ import annotations

import random

import anyio
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from phloem_bus.errors import ConfigError
from phloem_proto.v1 import phloem_pb2, phloem_pb2_grpc

from .auth import Keys
from .config import GatewayConfig
from .gateway import Gateway
from .grpc_handlers import Servicer
from .grpc_wire import LenientReader
from .listening import address

SERVICE: str = phloem_pb2.DESCRIPTOR.services_by_name["Phloem"].full_name
LIVENESS = "phloem.v1.Liveness"
"""Health service name that is SERVING as long as the process answers; "" and `SERVICE` tell readiness."""
MAX_SEND_BYTES = 64 * 1024 * 1024
"""One reply: prompt logprobs of a long prompt with 20 alternatives are tens of megabytes."""


class GrpcServer:
    """Serves until `stop`.

    Args:
        drain_s: how long calls may take to finish after `stop`.
    """

    def __init__(self, gateway: Gateway, keys: Keys, rng: random.Random, config: GatewayConfig, drain_s: float) -> None:
        self._drain_s = drain_s
        self._stop = anyio.Event()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server = aio.server(
            interceptors=(LenientReader(SERVICE),), options=_options(config), maximum_concurrent_rpcs=config.max_live
        )
        phloem_pb2_grpc.add_PhloemServicer_to_server(Servicer(gateway, keys, rng), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._bind(config.grpc_host, config.grpc_port or 0)

    def _bind(self, host: str, port: int) -> int:
        """Returns the real port. Raises `ConfigError` when the address can't be used."""
        where = address(host, port)
        try:
            return self._server.add_insecure_port(where)
        except RuntimeError:
            raise ConfigError(
                "--grpc-port", f"can't listen on {where}: the port is in use or the address unknown"
            ) from None

    async def set_ready(self, ready: bool) -> None:
        """Tell health checkers."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set("", status)
        await self._health.set(SERVICE, status)

    async def run(self) -> None:
        """Serve; returns after `stop` once calls have finished. Cancelling it ends them at once."""
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        await self._server.start()
        grace: float | None = None
        try:
            await self._stop.wait()
            grace = self._drain_s
        finally:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + (grace or 0.0) + 2.0):
                await self._server.stop(grace)

    def stop(self) -> None:
        """Refuse new calls and let `run` return when the present ones are over."""
        self._stop.set()


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    """A stream has nothing to say during a long prefill or in the queue, so HTTP/2 pings keep the connection open through proxies and tell
    whether the client is still there. It has as long to answer as lies between two of them."""
    pause_ms = max(1, round(1000 * config.keep_alive_s))
    return [
        ("grpc.so_reuseport", 0),  # otherwise a second gateway on the same port would start and take half of the calls
        ("grpc.max_receive_message_length", config.max_body_bytes),
        ("grpc.max_send_message_length", MAX_SEND_BYTES),
        ("grpc.keepalive_time_ms", pause_ms),
        ("grpc.keepalive_timeout_ms", pause_ms),
        # The core also pings to measure bandwidth, and holds our pings back until that one is answered: it must not wait its usual minute.
        ("grpc.http2.ping_timeout_ms", pause_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # 0 = any number of our pings in a row
        # Nor must clients be sent away for pinging us, however often.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
