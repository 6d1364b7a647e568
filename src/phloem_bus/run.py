"""One service as a process of its own, over NATS: what each ``__main__`` calls."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import typer
from prometheus_client import CollectorRegistry, ProcessCollector

from . import log, options
from .errors import ConfigError
from .garbage import settling
from .metrics import TaskCollector
from .nats import NatsBus
from .nats_client import Refused
from .process import ReadyFile, Signals, Threads, metrics_server, probe
from .service import Service, ServiceContext

__all__ = ["add_probe", "config_error", "config_errors", "probe", "run_service"]

T = TypeVar("T")

_log = logging.getLogger("phloem.run")

DRAIN_GRACE_S = 5.0
"""What a service may take beyond its drain time (its last goodbyes) before it is cancelled."""
CLOSE_S = 5.0
"""What closing the connection may take."""


def describe(error: ConfigError) -> str:
    """A setting's error in one line, with the flag and the variable that could have set it."""
    if not error.setting.startswith("--"):
        return f"error: {error}"
    variable = "PHLOEM_" + error.setting.removeprefix("--").replace("-", "_").upper()
    return f"error: {error.setting} ({variable}): {error.message}"


@contextmanager
def config_errors() -> Iterator[None]:
    """Turn a `ConfigError` inside into one line on standard error and its exit code."""
    try:
        yield
    except ConfigError as error:
        typer.echo(describe(error), err=True)
        raise typer.Exit(error.exit_code) from None


def add_probe(app: typer.Typer) -> None:
    """Give ``app`` the command ``probe``: exit 0 while the process that writes the ready file is ready."""

    @app.command(name="probe", help="Exit 0 if the service that writes the ready file is ready, else 1.")
    def run_probe(ready_file: options.ReadyFile = None) -> None:
        with config_errors():
            if ready_file is None:
                raise ConfigError("--ready-file", "names the file to look at; it is not set")
        raise typer.Exit(probe(ready_file))


def run_service(
    service_factory: Callable[[], Service], common: options.CommonOptions, *, wait_for_broker: bool = True
) -> int:
    """Run a service until it is told to stop; returns the exit code.

    Waits for the broker, drains at the first SIGTERM or SIGINT, stops at the second. Codes: 0 drained, 1 failed, 2 a setting can't be
    used (one line on standard error; 1 if it is what the setting names), 130 interrupted before it was done.

    Args:
        service_factory: makes the service; may raise `ConfigError`.
        common: the flags all services have.
        wait_for_broker: False: run the service although the first attempt to connect failed (an edge answers "unavailable").
    """
    log.configure(common.role, style=common.log_format, level=common.log_level)
    try:
        service = service_factory()
        return anyio.run(
            _run, service, common, wait_for_broker, backend_options={"use_uvloop": sys.platform != "win32"}
        )
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        setting = config_error(error)
        if setting is not None:
            typer.echo(describe(setting), err=True)
            return setting.exit_code
        _log.exception("%s failed", common.role)
        return 1


def config_error(error: BaseException) -> ConfigError | None:
    """The `ConfigError` that this is, or that some task group wrapped."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := config_error(inner)) is not None), None)
    return None


async def _run(service: Service, common: options.CommonOptions, wait_for_broker: bool) -> int:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(TaskCollector(asyncio.get_running_loop()))
    drain = anyio.Event()
    ready = ReadyFile(common.ready_file)
    signals = Signals(drain)

    async def work() -> int:
        with metrics_server(common.metrics_port, registry, common.metrics_host):
            bus = await race(lambda: _connect(common, wait_for_broker), drain.wait)
            if bus is None:
                return 0  # told to stop while there was nothing to drain
            return await _serve_on(bus, service, common, drain, registry, ready)

    code = await race(work, signals.watch, ready.keep)
    return 130 if code is None else code


async def _serve_on(
    bus: NatsBus,
    service: Service,
    common: options.CommonOptions,
    drain: anyio.Event,
    registry: CollectorRegistry,
    ready: ReadyFile,
) -> int:
    incarnation = secrets.randbits(63)
    context = ServiceContext(
        bus=bus,
        role=service.role,
        instance=common.instance,
        incarnation=incarnation,
        namespace=common.namespace,
        model=common.served_model_name,
        rng=random.Random(incarnation),
        offload=Threads(),
        drain=drain,
        drain_s=common.drain_s,
        registry=registry,
        ready=settling(ready.set),
    )
    try:
        code = await race(lambda: _serve(service, context), lambda: _overdue(context))
        return 1 if code is None else code
    finally:
        ready.set(False)
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            await bus.aclose()


async def _connect(common: options.CommonOptions, wait: bool) -> NatsBus:
    def waiting(reason: str) -> None:
        _log.warning("waiting for NATS at %s (%s)", common.nats.url, reason)

    try:
        return await NatsBus.connect(common.nats, on_wait=waiting, wait=wait)
    except Refused as error:
        raise ConfigError("--nats-user", f"the broker at {common.nats.url} refuses: {error}") from error


async def _serve(service: Service, context: ServiceContext) -> int:
    await service.run(context)
    if context.drain.is_set():
        return 0
    _log.error("%s ended without being told to", service.role)
    return 1


async def _overdue(context: ServiceContext) -> None:
    """Return when the drain has taken too long."""
    await context.drain.wait()
    await anyio.sleep(context.drain_s + DRAIN_GRACE_S)
    _log.error("not drained in time; stopping")


async def race(work: Callable[[], Awaitable[T]], *watchers: Callable[[], Awaitable[None]]) -> T | None:
    """Run ``work`` and the ``watchers`` beside it; what it raises comes out as it is.

    Returns its result, or None when a watcher returned first and ``work`` was cancelled.
    """
    result: T | None = None
    failure: Exception | None = None

    async def watch(watcher: Callable[[], Awaitable[None]]) -> None:
        await watcher()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for watcher in watchers:
            tasks.start_soon(watch, watcher)
        try:
            result = await work()
        except Exception as error:  # kept out of the task group, which would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result
