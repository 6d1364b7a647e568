"""A whole Phloem inside a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from phloem.serve.cluster import Cluster
from phloem.serve.settings import ServeSettings
from phloem_gateway.config import GatewayConfig
from phloem_gateway.service import GatewayService
from phloem_gpu_worker.config import WorkerConfig

READY_S = 60.0
"""Loading the tiny model takes a second; a loaded machine may take many times that."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running one. ``gateway.app`` is its ASGI application."""

    cluster: Cluster
    gateway: GatewayService

    @property
    def url(self) -> str:
        """Base URL of HTTP. It must be served (``http_port`` not None)."""
        assert self.gateway.http_port is not None
        return f"http://127.0.0.1:{self.gateway.http_port}"


def tiny_settings() -> ServeSettings:
    """The tiny model in float32 with a small pool, HTTP on any free port, no gRPC."""
    return ServeSettings(
        model="tiny",
        gateway=GatewayConfig(http_port=0, grpc_port=None),
        worker=WorkerConfig(model="tiny", dtype="float32", kv_tokens=4096, threads=1),
    )


@asynccontextmanager
async def local_cluster(settings: ServeSettings | None = None, *, seed: int = 0) -> AsyncIterator[LocalCluster]:
    """All five services on a `LocalBus`, ready when entered, drained when left.

    Args:
        settings: default `tiny_settings`; change them with `dataclasses.replace`.
        seed: of incarnations and jitter.

    Raises:
        TimeoutError: not ready within ``READY_S`` seconds.
        ExceptionGroup: what a service raised.
    """
    settings = settings or tiny_settings()
    if settings.worker.model != settings.model:
        settings = replace(settings, worker=replace(settings.worker, model=settings.model))
    gateway, services = settings.services()
    ready, drain = anyio.Event(), anyio.Event()
    cluster = Cluster(
        services, model=settings.name, drain_s=5.0, seed=seed, on_ready=lambda state: ready.set() if state else None
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.run, drain)
        with anyio.fail_after(READY_S):
            await ready.wait()
        try:
            yield LocalCluster(cluster, gateway)
        finally:
            drain.set()
