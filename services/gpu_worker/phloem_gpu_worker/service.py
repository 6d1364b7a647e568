"""The worker on the bus: accepts a scheduler, passes its plans to the device, and what they yield back."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import msgspec

from phloem_bus.errors import LinkClosed, PayloadTooLarge
from phloem_bus.link import Link, Links
from phloem_bus.log import about
from phloem_bus.node import Received
from phloem_bus.peers import LEFT
from phloem_bus.presence import Presence
from phloem_bus.service import ServiceContext
from phloem_proto.messages import (
    ErrorInfo,
    Hello,
    Load,
    Plan,
    Result,
    RowFailure,
    StepFailed,
    WorkerInbox,
    WorkerLinkDown,
)
from phloem_proto.subjects import Role

from .config import WorkerConfig
from .core import WorkerCore
from .device import Device, ThreadDevice
from .leadership import Leadership
from .pipeline import Done, Emptied, Report
from .runner import Runner
from .startup import Loaded, load
from .totals import Totals

_log = logging.getLogger("phloem.worker")

EMPTY_S = 30.0
"""How long a Hello may wait for the running step: the longest step a device may take."""
QUIET_S = 1.0
"""A draining worker leaves once it had no live sequence for this long: requests under way to it may still arrive."""
GOODBYE_S = 1.0

MakeDevice = Callable[[WorkerCore, ServiceContext], Device]
Loader = Callable[[WorkerConfig, str], Loaded]


class WorkerService:
    """See `phloem_bus.service.Service`.

    Args:
        config: settings.
        runner: used instead of the model that ``config`` names, without end tokens and grammars (benchmarks).
        loader: used instead of `startup.load` (simulation).
        make_device: where steps run; by default a thread of their own.
    """

    role = Role.WORKER

    def __init__(
        self,
        config: WorkerConfig,
        *,
        runner: Runner | None = None,
        loader: Loader | None = None,
        make_device: MakeDevice | None = None,
    ) -> None:
        self._config = config
        self._loader = loader or (lambda config, name: load(config, name, runner))
        self._make_device = make_device or (lambda core, _: ThreadDevice(core))

    async def run(self, ctx: ServiceContext) -> None:
        """Load the model, then serve until drained or cancelled.

        Raises:
            ConfigError: the model or device can't be used.
        """
        loaded = await ctx.offload(lambda: self._loader(self._config, ctx.model))
        await _Serving(ctx, loaded, self._make_device(loaded.core, ctx)).run()


class _Serving:
    """One run of the service: a node, at most one link to the leading scheduler, a device."""

    def __init__(self, ctx: ServiceContext, loaded: Loaded, device: Device) -> None:
        self._ctx = ctx
        self._core = loaded.core
        self._profile = loaded.profile
        self._device = device
        self._totals = Totals(loaded.core)
        self._leadership = Leadership()
        self._link: Link | None = None
        self._emptied = anyio.Event()
        self._session = 0
        """The session the device works for; 0 = none."""
        ctx.registry.register(self._totals)
        self._node = ctx.node()
        self._presence = Presence(
            self._node,
            tells=[Role.SCHEDULER],
            watches=[Role.SCHEDULER],
            profile=lambda: self._profile,
            load=self._load,
            term=lambda: self._leadership.term,
        )
        self._links = Links(self._node, self._presence)
        self._links.accept(
            Role.SCHEDULER,
            receives=WorkerLinkDown,
            profile=lambda: self._profile,
            admit=self._admit,
            on_open=self._on_open,
            on_message=self._on_plan,
            on_gone=self._on_gone,
        )

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._device.run, self._on_report)
                await tasks.start(self._node.run, WorkerInbox)
                tasks.start_soon(self._presence.run)
                tasks.start_soon(self._links.run)
                self._presence.set_state("ready")
                self._ctx.ready(True)
                await self._ctx.drain.wait()
                self._presence.set_state("draining")
                self._ctx.ready(False)
                with anyio.move_on_after(self._ctx.drain_s):
                    await self._quiet()
                await self._leave()
                tasks.cancel_scope.cancel()
        finally:
            await self._leave()

    async def _admit(self, received: Received[Hello]) -> ErrorInfo | None:
        """Let a scheduler in once the device is idle and everything of the former session is gone."""
        if self._ctx.drain.is_set():
            return ErrorInfo("draining", "this worker is about to stop")
        hello, sender = received.message, received.sender
        error = self._leadership.judge(sender, hello.term, self._leader_is_there())
        if error is not None:
            return error
        self._leadership.follow(sender, hello.term)
        self._emptied, self._session = anyio.Event(), hello.session
        self._device.reset(hello.session)
        with anyio.move_on_after(EMPTY_S):
            await self._emptied.wait()
            return None
        return ErrorInfo("busy", "the device is still in a step", retry_after_ms=1000)

    def _leader_is_there(self) -> bool:
        leader = self._leadership.leader
        if leader is None or self._link is None or not self._link.open:
            return False
        peer = self._presence.get(Role.SCHEDULER, leader.instance)
        return peer is not None and not peer.suspect

    def _on_open(self, link: Link) -> None:
        _log.info("scheduler %s leads with term %d", link.peer_instance, link.term)
        self._link = link

    def _on_plan(self, link: Link, plan: Plan) -> None:
        """Raises `TooManyPlans`, which ends the link."""
        self._device.submit(link.session, plan)
        for opened in plan.opens:
            _log.debug("takes slot %d with plan %d", opened.slot, plan.step, extra=about(opened.rid))

    def _on_gone(self, link: Link) -> None:
        if self._link is link:
            self._link = None
        if self._session == link.session:  # not so when a new session, which has emptied the slots, replaces this link
            if link.ended == LEFT:
                _log.info("scheduler %s has left in good order", link.peer_instance)
            else:
                _log.info("scheduler %s is gone; its sequences are dropped", link.peer_instance)
            self._session = 0
            self._device.reset(0)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Emptied):
            if report.session == self._session:
                self._emptied.set()
            return
        if isinstance(report.message, Result):
            self._totals.add(report.message)
        else:
            self._totals.add_failed()
        _note(report)
        if self._link is not None and self._link.session == report.session:
            self._send(self._link, report)

    def _send(self, link: Link, report: Done) -> None:
        try:
            link.send(report.message)
        except LinkClosed:
            _log.info("a result came too late for its session")
        except PayloadTooLarge as error:
            assert isinstance(report.message, Result)
            without = _without_logprobs(report.message)
            for row in dict.fromkeys(entry.row for entry in report.message.logprobs):
                _log.warning("logprobs of step %d don't fit: %s", without.step, error, extra=about(report.rids[row]))
            link.send(without)

    async def _quiet(self) -> None:
        """Return once no scheduler is linked, or no sequence has been live for a while."""
        idle_since = anyio.current_time()
        while self._link is not None and anyio.current_time() - idle_since < QUIET_S:
            await anyio.sleep(0.05)
            if self._core.live:
                idle_since = anyio.current_time()

    async def _leave(self) -> None:
        """Say goodbye even when cancelled."""
        with anyio.move_on_after(GOODBYE_S, shield=True):
            await self._presence.goodbye()

    def _load(self) -> Load:
        return Load(
            in_flight=self._core.live,
            capacity=self._core.limits.slots,
            running=self._core.live,
            pages_total=self._core.runner.capacity.pages,
            counters=self._totals.counters(),
        )


def _note(report: Done) -> None:
    """Log lines for those whose row or step failed."""
    message = report.message
    if isinstance(message, StepFailed):
        for rid in dict.fromkeys(filter(None, report.rids)):
            _log.warning("was in step %d, which failed", message.step, extra=about(rid))
        return
    for failure in message.failures:
        extra = about(report.rids[failure.row])
        _log.warning("can't go on after step %d: %s: %s", message.step, failure.code, failure.message, extra=extra)


def _without_logprobs(result: Result) -> Result:
    """The same result with the rows that have logprobs failed instead: they are all that can make it too large."""
    rows = dict.fromkeys(entry.row for entry in result.logprobs)
    failures = tuple(RowFailure(row, "logprobs_too_large", "too many logprobs for one message") for row in rows)
    return msgspec.structs.replace(result, logprobs=(), failures=result.failures + failures)
