"""The grammar service on the bus: answers `Compile`, tells the scheduler that it is there, drains on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
from anyio.abc import TaskGroup
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from phloem_bus.errors import ConfigError
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_model import ModelError, ModelFiles, resolve
from phloem_proto.messages import Compile, ErrorInfo, GrammarInbox, Load, Profile, Verdict
from phloem_proto.subjects import Role

from .config import GrammarConfig
from .core import COUNTED, Bounds, GrammarCore
from .desk import Desk
from .engine import TokenizerSource
from .limits import Limits
from .runner import InlineRunner, Runner, SandboxRunner
from .sandbox import SandboxError
from .sandbox_wire import JobLimits

MB = 1 << 20
GOODBYE_S = 1.0
KNOWN_CALLS = 256
"""Calls beyond those that may wait: they are answered from the cache, or told ``busy`` by the core."""

MakeRunner = Callable[[TokenizerSource, ServiceContext], Runner]


class GrammarService:
    """See `phloem_bus.service.Service`.

    Args:
        config: settings.
        make_runner: replaces what ``config`` says about where compiles run.
        limits: of specs.
    """

    role = Role.GRAMMAR

    def __init__(
        self, config: GrammarConfig, *, make_runner: MakeRunner | None = None, limits: Limits | None = None
    ) -> None:
        self._config = config
        self._make_runner = make_runner or self._configured_runner
        self._limits = limits or Limits()

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until drained or cancelled.

        Raises:
            ConfigError: the model's tokenizer can't be had, or can't be loaded by the first engine.
        """
        try:
            files = await ctx.offload(lambda: resolve(self._config.model))
        except ModelError as error:
            raise ConfigError("--model", str(error), error.exit_code) from error
        tokenizer = TokenizerSource(str(files.tokenizer_json), files.eos_ids, files.tokenizer_digest)
        bounds = Bounds(self._config.compiles, self._config.compiles_waiting, self._config.verdict_cache_mb * MB)
        core = GrammarCore(tokenizer.digest, self._limits, bounds)
        runner = self._make_runner(tokenizer, ctx)
        desk = Desk(core, runner, self._limits, ctx.offload)
        ctx.registry.register(_Counters(core))
        node = ctx.node()
        presence = Presence(
            node,
            tells=[Role.SCHEDULER],
            watches=[Role.SCHEDULER],
            profile=lambda: _profile(ctx.model, files),
            load=lambda: _load(desk, bounds),
        )
        node.serve(Compile, desk.answer, limit=bounds.waiting + KNOWN_CALLS, busy=_busy)
        try:
            async with anyio.create_task_group() as tasks:
                await _start(runner, tasks)
                await tasks.start(node.run, GrammarInbox)
                tasks.start_soon(presence.run)
                for _ in range(bounds.running):
                    tasks.start_soon(desk.work)
                presence.set_state("ready")
                ctx.ready(True)
                await ctx.drain.wait()
                desk.draining = True
                presence.set_state("draining")
                ctx.ready(False)
                with anyio.move_on_after(ctx.drain_s):
                    await desk.finished()
                await _leave(presence)
                tasks.cancel_scope.cancel()
        finally:
            await _leave(presence)

    def _configured_runner(self, tokenizer: TokenizerSource, ctx: ServiceContext) -> Runner:
        config = self._config
        if not config.sandbox:
            return InlineRunner(tokenizer, ctx.offload)
        limits = JobLimits(config.compile_cpu_seconds, config.compile_memory_mb * MB, config.compile_wall_seconds)
        return SandboxRunner(tokenizer, limits, priority=config.compile_priority)


async def _start(runner: Runner, tasks: TaskGroup) -> None:
    try:
        await tasks.start(runner.serve)
    except* SandboxError as group:
        message = f"the grammar engine can't load its tokenizer: {group.exceptions[0]}"
        raise ConfigError("--model", message, exit_code=1) from group


async def _leave(presence: Presence) -> None:
    """Say goodbye even when cancelled."""
    with anyio.move_on_after(GOODBYE_S, shield=True):
        await presence.goodbye()


def _busy(_: Compile) -> Verdict:
    return Verdict(
        error=ErrorInfo("busy", "too many grammars wait to be compiled", param="grammar", retry_after_ms=1000)
    )


def _profile(model: str, files: ModelFiles) -> Profile:
    return Profile(
        model=model,
        model_digest=files.model_digest,
        tokenizer_digest=files.tokenizer_digest,
        context_length=files.context_length,
        vocab_size=files.vocab_size,
    )


def _load(desk: Desk, bounds: Bounds) -> Load:
    core = desk.core
    counters = {f"phloem_grammar_{name}_total": float(value) for name, value in core.counters.items()}
    return Load(
        in_flight=desk.open,
        capacity=bounds.waiting,
        running=core.running,
        waiting=core.waiting,
        counters=counters,
    )


class _Counters(Collector):
    """The core's counters as metrics."""

    def __init__(self, core: GrammarCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        for name, value in self._core.counters.items():
            yield CounterMetricFamily(f"phloem_grammar_{name}", COUNTED[name], value=float(value))
