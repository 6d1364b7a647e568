"""Callers of `Compile` on one side, the runner on the other, the core between them."""

from __future__ import annotations

import itertools
import logging

import anyio

from phloem_bus.log import about
from phloem_bus.node import Received
from phloem_bus.service import Offload
from phloem_proto.messages import Compile, ErrorInfo, GrammarSpec, Verdict

from .core import GrammarCore, Start
from .engine import Died, Lost, Outcome, Rejected
from .limits import Limits
from .refusal import Refused
from .route import Route, route
from .runner import Runner
from .sandbox import SandboxError

_log = logging.getLogger("phloem.grammar")

WAIT_MAX_S = 120.0
"""How long a caller without a deadline waits: longer than any caller's patience, so that no ticket stays for ever."""


class Desk:
    """Answers `Compile` calls. `work` must run as often as compiles may run at once.

    Args:
        core, runner: decide and do.
        limits: of specs.
        offload: where reading a large source runs.
    """

    def __init__(self, core: GrammarCore, runner: Runner, limits: Limits, offload: Offload) -> None:
        self.core = core
        self._runner = runner
        self._limits = limits
        self._offload = offload
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _Waiter] = {}
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self.draining = False
        self.open = 0
        """Calls not answered yet."""

    async def answer(self, received: Received[Compile]) -> Verdict:
        """The verdict on one spec, within the call's deadline."""
        if self.draining:
            return Verdict(error=ErrorInfo("draining", "this grammar service is leaving"))
        self.open += 1
        try:
            verdict = await self._judge(received.message)
            _note(verdict, received.message.rid)
            return verdict
        finally:
            self.open -= 1
            self._tell()

    async def work(self) -> None:
        """Run compiles as the core hands them out, one at a time, until cancelled."""
        while True:
            start = self.core.next_task()
            if start is None:
                await self._wake.wait()
                continue
            outcome = await self._run(start)
            for ticket, verdict in self.core.finish(start.digest, outcome):
                self._waiting[ticket].tell(verdict)
            self._tell()

    async def _run(self, start: Start) -> Outcome:
        """Compile; log lines about it are told under the request that asked first."""
        try:
            outcome = await self._runner.run(start.engine, start.task)
        except SandboxError as error:
            _log.warning("engine %s can't be loaded: %s", start.engine, error, extra=about(start.rid))
            return Rejected(f"{start.engine} can't be loaded")
        if isinstance(outcome, Died | Lost):
            what = f"ended ({outcome.cause})" if isinstance(outcome, Died) else "lost"
            why = f": {outcome.detail}" if outcome.detail else ""
            _log.warning("the compile by %s was %s%s", start.engine, what, why, extra=about(start.rid))
        return outcome

    async def finished(self) -> None:
        """Wait until no call is open and nothing runs."""
        while self.open or self.core.running:
            await self._wake.wait()

    async def _judge(self, call: Compile) -> Verdict:
        known = self.core.known(call.spec)
        if known is not None:
            return known
        seconds = min(call.deadline_ms / 1000, WAIT_MAX_S) if call.deadline_ms > 0 else WAIT_MAX_S
        with anyio.move_on_after(seconds):
            routed = await self._offload(lambda: _routed(call.spec, self._limits))
            ticket = next(self._tickets)
            verdict = self.core.ask(ticket, call.spec, routed, call.rid)
            return await self._wait(ticket) if verdict is None else verdict
        return Verdict(
            error=ErrorInfo("deadline", "the deadline passed before the grammar was compiled", param="grammar")
        )

    async def _wait(self, ticket: int) -> Verdict:
        waiter = self._waiting[ticket] = _Waiter()
        self._tell()
        try:
            return await waiter.verdict()
        finally:
            del self._waiting[ticket]
            self.core.cancel(ticket)

    def _tell(self) -> None:
        """Something changed: everybody who waits looks again."""
        self._wake.set()
        self._wake = anyio.Event()


class _Waiter:
    def __init__(self) -> None:
        self._come = anyio.Event()
        self._verdict: Verdict | None = None

    def tell(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._come.set()

    async def verdict(self) -> Verdict:
        await self._come.wait()
        assert self._verdict is not None
        return self._verdict


def _note(verdict: Verdict, rid: bytes) -> None:
    """A log line for the answer to a call."""
    if verdict.grammar is not None:
        _log.debug("its grammar goes to %s", verdict.grammar.engine, extra=about(rid))
    elif verdict.error is not None:
        _log.info("its grammar gets %s: %s", verdict.error.code, verdict.error.message, extra=about(rid))


def _routed(spec: GrammarSpec, limits: Limits) -> Route | Refused:
    try:
        return route(spec, limits)
    except Refused as refused:
        return refused
