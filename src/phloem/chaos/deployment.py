"""The processes of `phloem up`, each in our hand: started, ended, frozen and awaited one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from phloem.up.plan import BROKER, Instance, Plan
from phloem.up.ports import LOOPBACK
from phloem.up.process import Child

from .errors import NotReady

LOOK_S = 0.02
READY_S = 120.0
"""How long a process may take until it is ready: the first start of a model converts it."""
END_S = 60.0
"""How long a process may take to end after SIGTERM: its drain and what is left over."""
FRESH_S = 5.0
"""A ready file older than this says nothing: its process is dead or hangs."""
RESTART_S = 0.2
"""Pause before what died is started again, as `phloem up` has it."""
SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that nobody had asked to end."""

    name: str
    code: int


@dataclass(slots=True)
class _Life:
    child: Child
    over: anyio.Event
    expected: bool = False
    """We ended it, or asked it to end."""
    code: int | None = None


class Deployment:
    """Use with `running`.

    Args:
        plan: what `phloem up` would run.
        logs: folder for one log file per process; a restarted process goes on in the same file.
    """

    def __init__(self, plan: Plan, logs: Path) -> None:
        self.instances = {one.name: one for one in plan.instances}
        self.url = f"http://{LOOPBACK}:{plan.published['PHLOEM_HTTP_PORT']}"
        self.surprises: list[Ended] = []
        """Processes that ended by themselves since somebody last cleared this."""
        self._one_shots = {unit.instance for unit in plan.units if unit.one_shot}
        self._logs = logs
        self._lives: dict[str, _Life] = {}
        self._tasks: TaskGroup | None = None

    # --- Who is who -------------------------------------------------------------------------------------------------

    def named(self, module: str) -> list[str]:
        """Instances that run ``python -m module``, in order."""
        return [name for name, one in self.instances.items() if module in one.argv and name not in self._one_shots]

    @property
    def workers(self) -> list[str]:
        return self.named("phloem_gpu_worker")

    @property
    def schedulers(self) -> list[str]:
        return self.named("phloem_scheduler")

    @property
    def tokenizers(self) -> list[str]:
        return self.named("phloem_tokenizer")

    @property
    def grammars(self) -> list[str]:
        return self.named("phloem_grammar")

    @property
    def gateways(self) -> list[str]:
        return self.named("phloem_gateway")

    @property
    def broker(self) -> str:
        return f"{BROKER}-1"

    @property
    def services(self) -> list[str]:
        """All but the broker, from the inside out: who others depend on first."""
        return [*self.workers, *self.grammars, *self.tokenizers, *self.schedulers, *self.gateways]

    def log(self, name: str) -> Path:
        """Its log file."""
        return self._logs / f"{name}.log"

    def pid(self, name: str) -> int:
        """Of the service itself. It must be running."""
        return self._lives[name].child.pid

    def runs(self, name: str) -> bool:
        """Whether any process of it runs."""
        return name in self._lives

    def is_running(self, name: str, pid: int) -> bool:
        """Whether that process of it still runs."""
        return name in self._lives and self.pid(name) == pid

    def metrics_url(self, name: str) -> str:
        """Where Prometheus would ask this instance."""
        return f"http://{LOOPBACK}:{self.instances[name].environment['PHLOEM_METRICS_PORT']}"

    # --- Starting and ending ----------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start it, without waiting for it to be ready. It must not be running."""
        assert self._tasks is not None
        assert name not in self._lives
        instance = self.instances[name]
        _forget_ready(instance)
        with self.log(name).open("ab") as output:
            child = await Child.start(instance, output)
        life = self._lives[name] = _Life(child, anyio.Event())
        self._tasks.start_soon(self._follow, name, life)

    async def ready(self, *names: str) -> None:
        """Wait until these are ready. Raises `NotReady`."""
        for name in names:
            deadline = anyio.current_time() + READY_S
            while not await self._is_ready(name):
                if anyio.current_time() > deadline or name not in self._lives:
                    raise self._not_ready(name)
                await anyio.sleep(LOOK_S)

    async def kill(self, name: str) -> None:
        """SIGKILL to the process, then to whatever it had started."""
        await self._end(name, signal.SIGKILL)

    async def terminate(self, name: str) -> int:
        """SIGTERM; returns the exit code once it has drained. Raises `NotReady` if it does not end."""
        return await self._end(name, signal.SIGTERM)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it is there and does nothing."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        os.kill(self.pid(name), signal.SIGCONT)

    async def restart_soon(self, name: str) -> None:
        """Start it again as a supervisor does: after a moment."""
        await anyio.sleep(RESTART_S)
        await self.start(name)

    async def _end(self, name: str, number: signal.Signals) -> int:
        life = self._lives[name]
        life.expected = True
        os.kill(life.child.pid, number)
        with anyio.move_on_after(END_S):
            await life.over.wait()
        if life.code is None:
            raise NotReady(
                f"{name} did not end within {END_S:g} s of {number.name}; the end of its log:\n{self._tail(name)}"
            )
        return life.code

    async def _follow(self, name: str, life: _Life) -> None:
        with anyio.CancelScope(shield=True):  # whoever cancels us kills it first, and then waits for it
            code = life.code = await life.child.wait()
        if self._lives.get(name) is life:
            del self._lives[name]
        if not life.expected and not (name in self._one_shots and code == 0):
            self.surprises.append(Ended(name, code))
        life.over.set()

    async def _is_ready(self, name: str) -> bool:
        instance = self.instances[name]
        if instance.ready_port:
            return await _listens(instance.ready_port)
        return not instance.ready_file or _fresh(Path(instance.ready_file))

    def _not_ready(self, name: str) -> NotReady:
        how = "is not ready in time" if name in self._lives else "ended instead of getting ready"
        return NotReady(f"{name} {how}; the end of its log:\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])

    # --- As a whole -------------------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        """The broker, then what has to be done once, then all services at the same time. Raises `NotReady`."""
        await self.start(self.broker)
        await self.ready(self.broker)
        for name in sorted(self._one_shots):
            await self._do_once(name)
        for name in self.services:
            await self.start(name)
        await self.ready(*self.services)

    async def mend(self) -> None:
        """Start whatever is not running, and wait until everything is ready. Raises `NotReady`."""
        for name in (self.broker, *self.services):
            if name not in self._lives:
                await self.start(name)
        await self.ready(self.broker, *self.services)

    async def _do_once(self, name: str) -> None:
        await self.start(name)
        life = self._lives[name]
        await life.over.wait()
        if life.code:
            raise NotReady(f"{name} failed with code {life.code}; the end of its log:\n{self._tail(name)}")

    async def stop_all(self) -> None:
        """Edges first, then inwards, as `phloem up` stops."""
        for name in (*reversed(self.services), self.broker):
            if name in self._lives:
                await self._end(name, signal.SIGTERM)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Deployment]:
        """Everything, ready, for as long as the context lasts; ended at once when it is left by an error, which comes out as it is."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await self.start_all()
                yield self
                await self.stop_all()
            except Exception as error:  # kept out of the task group, which would wrap it
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    await self._kill_all()
        if failure is not None:
            raise failure

    async def _kill_all(self) -> None:
        for life in self._lives.values():
            life.expected = True
            life.child.kill()
        with anyio.move_on_after(END_S):
            for life in list(self._lives.values()):
                await life.over.wait()


def _forget_ready(instance: Instance) -> None:
    """What a former life of it said no longer holds."""
    if instance.ready_file:
        Path(instance.ready_file).unlink(missing_ok=True)


def _fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH_S
    except OSError:
        return False


async def _listens(port: int) -> bool:
    try:
        with anyio.fail_after(1.0):
            stream = await anyio.connect_tcp(LOOPBACK, port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True
