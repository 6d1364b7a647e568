"""Where compiles run: in sandboxes (production), or inline (tests and the simulation)."""

from __future__ import annotations

from typing import Protocol

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from phloem_bus.service import Offload

from .engine import ENGINES, Engine, Outcome, Task, TokenizerSource, attempt, load
from .sandbox import ForkServer
from .sandbox_wire import JobLimits, Setup

FIRST = "llguidance"
"""The engine that is loaded before the service is ready; others are loaded when first needed."""


class Runner(Protocol):
    """Runs one task on one engine. `serve` must be running meanwhile."""

    async def serve(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Until cancelled; started once the first engine is loaded. Raises `SandboxError` when it can't be."""
        ...

    async def run(self, engine: str, task: Task) -> Outcome:
        """Compile. Never raises for a bad grammar. Raises `SandboxError` if the engine can't be loaded."""
        ...


class SandboxRunner:
    """One fork server per engine, so that the rare engine's memory and start-up time are paid only where it is used.

    Args:
        tokenizer: what the engines load.
        limits: of each job.
        priority: ``idle`` | ``nice`` | ``normal``, of the compiling processes.
        engines: engine name to ``module:class``.
    """

    def __init__(
        self,
        tokenizer: TokenizerSource,
        limits: JobLimits,
        *,
        priority: str = "idle",
        engines: dict[str, str] | None = None,
    ) -> None:
        engines = ENGINES if engines is None else engines
        self.servers = {name: ForkServer(Setup(path, tokenizer, limits, priority)) for name, path in engines.items()}
        self._started: set[str] = set()
        self._starting = anyio.Lock()
        self._group: TaskGroup | None = None

    async def serve(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """See `Runner.serve`."""
        async with anyio.create_task_group() as group:
            self._group = group
            await self._start(FIRST)
            task_status.started()

    async def run(self, engine: str, task: Task) -> Outcome:
        """See `Runner.run`."""
        await self._start(engine)
        return await self.servers[engine].submit(task)

    async def _start(self, engine: str) -> None:
        async with self._starting:
            if engine not in self._started:
                assert self._group is not None, "serve is not running"
                await self._group.start(self.servers[engine].run)
                self._started.add(engine)


class InlineRunner:
    """Engines in this process, through ``offload``: no protection, but nothing but plain calls."""

    def __init__(self, tokenizer: TokenizerSource, offload: Offload) -> None:
        self._tokenizer = tokenizer
        self._offload = offload
        self._engines: dict[str, Engine] = {}

    async def serve(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """See `Runner.serve`."""
        self._engine(FIRST)
        task_status.started()
        await anyio.sleep_forever()

    async def run(self, engine: str, task: Task) -> Outcome:
        """See `Runner.run`."""
        loaded = self._engine(engine)
        return await self._offload(lambda: attempt(loaded, task))

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = load(ENGINES[name], self._tokenizer)
        return self._engines[name]
