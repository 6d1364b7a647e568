"""A service for tests of `run_service`, run as ``python -m tests.bus.dummy_service MODE [flags]``.

MODE: ``good`` drains at once; ``slow`` never drains; ``threads`` hangs in a thread; ``fails``; ``ends`` without being told; ``port`` finds
its port taken.
"""

from __future__ import annotations

import sys
import time

import anyio
import typer

from phloem_bus import options, run
from phloem_bus.errors import ConfigError
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_proto.messages import GrammarInbox, Profile
from phloem_proto.subjects import Role


class Dummy:
    role = Role.GRAMMAR

    def __init__(self, mode: str) -> None:
        if mode == "setting":
            raise ConfigError("--compile-limit", "must be positive")
        self._mode = mode

    async def run(self, ctx: ServiceContext) -> None:
        node = ctx.node()
        presence = Presence(node, tells=[Role.SCHEDULER], watches=[], profile=lambda: Profile(ctx.model))
        async with anyio.create_task_group() as tasks:
            await tasks.start(node.run, GrammarInbox)
            tasks.start_soon(presence.run)
            ctx.ready(True)
            print("up", flush=True)
            await self._work(ctx)
            await presence.goodbye()
            tasks.cancel_scope.cancel()

    async def _work(self, ctx: ServiceContext) -> None:
        match self._mode:
            case "fails":
                raise RuntimeError("broken on purpose")
            case "port":
                raise ConfigError("--http-port", "port 8000 is in use")
            case "slow":
                await anyio.sleep(3600)
            case "threads":
                await ctx.offload(lambda: time.sleep(3600))
            case "good":
                await ctx.drain.wait()
                ctx.ready(False)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    mode: str = "good",
    nats_url: options.NatsUrl = options.NATS_URL,
    nats_user: options.NatsUser = "",
    nats_password_file: options.NatsPasswordFile = None,
    log_format: options.LogFormat = "console",
    drain_seconds: options.DrainSeconds = options.DRAIN_S,
    metrics_port: options.MetricsPort = 0,
    metrics_host: options.MetricsHost = options.METRICS_HOST,
    ready_file: options.ReadyFile = None,
    version: options.Version = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    with run.config_errors():
        common = options.CommonOptions.of(
            Role.GRAMMAR,
            nats_url=nats_url,
            nats_user=nats_user,
            nats_password_file=nats_password_file,
            log_format=log_format,
            drain_seconds=drain_seconds,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            ready_file=ready_file,
        )
    raise typer.Exit(run.run_service(lambda: Dummy(mode), common))


run.add_probe(app)

if __name__ == "__main__":
    sys.exit(app())
