"""The shell around the policy: processes, signals, lines and the clock."""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from .console import Console
from .plan import Instance, Plan
from .policy import MISUSED, Action, Kill, Policy, Start, State, Terminate
from .ports import LOOPBACK
from .process import Child

LOOK_S = 0.05  # between looks at whether something answers
LAST_WORDS_S = 1.0  # for the output of a process that has ended, should a stranger hold its other end


class Runner:
    """Runs a plan until everything has ended.

    Args:
        plan: what to run.
        console: where lines go.
        drain_s: seconds that a stop may take before what is left is killed.
        on_ready: called once, when every instance that says so is ready.
    """

    def __init__(self, plan: Plan, console: Console, *, drain_s: float, on_ready: Callable[[], None]) -> None:
        self._instances = {instance.name: instance for instance in plan.instances}
        self._policy = Policy(plan.units, drain_s=drain_s)
        self._console = console
        self._on_ready = on_ready
        self._children: dict[str, Child] = {}
        self._news = anyio.Event()
        self._cut_short = False

    async def run(self) -> int:
        """Returns the exit code: 0 when all has drained or is done, 130 if a second signal cut that short, 1 if something died too often, 2 if
        a setting was of no use to it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._signals)
            group.start_soon(self._announce)
            try:
                await self._loop(group)
            finally:
                for child in self._children.values():
                    child.kill()
            group.cancel_scope.cancel()
        culprit = self._policy.culprit
        if culprit is not None:
            self._console.show_last(culprit)
            return MISUSED if self._policy.culprit_misused else 1
        return 130 if self._cut_short else 0

    async def _loop(self, group: TaskGroup) -> None:
        while True:
            now = anyio.current_time()
            for action in self._policy.decide(now):
                await self._act(action, group)
            if self._policy.finished:
                return
            wake = self._policy.next_wake()
            with anyio.move_on_at(wake) if wake is not None else anyio.CancelScope():
                await self._news.wait()
            self._news = anyio.Event()

    async def _act(self, action: Action, group: TaskGroup) -> None:
        match action:
            case Start(name):
                await self._start(self._instances[name], group)
            case Terminate(name):
                self._children[name].terminate()
            case Kill(name):
                self._console.say(f"{name} is killed")
                self._children[name].kill()

    async def _start(self, instance: Instance, group: TaskGroup) -> None:
        await _forget_ready(instance)
        try:
            child = await Child.start(instance)
        except OSError as error:
            self._console.line(instance.name, f"can't be started: {error.strerror}")
            self._policy.could_not_start(instance.name, anyio.current_time())
            return
        self._children[instance.name] = child
        group.start_soon(self._follow, child)

    async def _follow(self, child: Child) -> None:
        """Show what a child says, notice when it answers and when it ends."""
        name = child.instance.name
        async with anyio.create_task_group() as group:
            group.start_soon(self._await_answer, child)
            group.start_soon(self._show, child)
            code = await child.wait()
            group.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_S
        del self._children[name]
        self._policy.exited(name, code, anyio.current_time())
        self._tell_end(name, code)
        self._news.set()

    async def _show(self, child: Child) -> None:
        async for line in child.lines():
            self._console.line(child.instance.name, line)

    async def _await_answer(self, child: Child) -> None:
        if not child.instance.ready_port:
            return
        while not child.ended:
            if await _answers(child.instance.ready_port):
                self._policy.became_healthy(child.instance.name)
                self._news.set()
                return
            await anyio.sleep(LOOK_S)

    async def _announce(self) -> None:
        """Call `on_ready` once all ready files are there."""
        for one in self._instances.values():
            while one.ready_file and not await anyio.Path(one.ready_file).exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(LOOK_S)
        self._on_ready()

    async def _signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            async for _ in received:
                if self._policy.stopping:
                    self._console.say("stopping at once")
                else:
                    self._console.say("draining; once more to stop at once")
                self._cut_short = self._policy.stopping
                self._policy.stop(anyio.current_time())
                self._news.set()

    def _tell_end(self, name: str, code: int) -> None:
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        match self._policy.state(name):
            case State.BACKING_OFF:
                self._console.say(f"{name} ended {how}; it will be started again")
            case State.STOPPED if self._policy.culprit == name:
                self._console.say(f"{name} ended {how}; giving up and stopping everything")
            case State.STOPPED:
                self._console.say(f"{name} ended {how}")
            case _:
                pass  # a one-shot that did its work


async def _forget_ready(instance: Instance) -> None:
    """What a former life of it said no longer holds."""
    if instance.ready_file:
        await anyio.Path(instance.ready_file).unlink(missing_ok=True)


async def _answers(port: int) -> bool:
    try:
        with anyio.fail_after(LOOK_S * 10):
            stream = await anyio.connect_tcp(LOOPBACK, port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True
