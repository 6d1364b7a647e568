"""Driving a core and a runner by hand, without a bus."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import anyio

from phloem_grammar.core import Bounds, GrammarCore, Start
from phloem_grammar.engine import MaskBudget
from phloem_grammar.limits import Limits
from phloem_grammar.runner import Runner
from phloem_proto.messages import ErrorInfo, GrammarSpec, Verdict

_tickets = itertools.count(1)

PATIENT = MaskBudget(single_ms=1000.0, mean_ms=200.0)
"""For machines on which other tests run: CPU time of one mask still varies there."""


def new_core(bounds: Bounds | None = None, limits: Limits | None = None) -> GrammarCore:
    return GrammarCore("byte", limits or Limits(), bounds or Bounds(), PATIENT)


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", value if isinstance(value, str) else json.dumps(value))


def regex(pattern: str) -> GrammarSpec:
    return GrammarSpec("regex", pattern)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that no event tells of (a process's state, another task's list)."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def judge(core: GrammarCore, runner: Runner, spec: GrammarSpec) -> Verdict:
    """Ask, and run whatever the core wants run, until the verdict comes."""
    ticket = next(_tickets)
    verdict = core.ask(ticket, spec)
    while verdict is None:
        start = core.next_task()
        assert start is not None, "the core waits for nothing"
        answers = core.finish(start.digest, await runner.run(start.engine, start.task))
        verdict = dict(answers).get(ticket)
    return verdict


def asked(core: GrammarCore, spec: GrammarSpec) -> tuple[int, Start]:
    """Ask for a spec that the core does not know; returns the ticket and the compile that is to start."""
    ticket = next(_tickets)
    assert core.ask(ticket, spec) is None
    start = core.next_task()
    assert start is not None
    return ticket, start


def refusal(verdict: Verdict | None) -> ErrorInfo:
    assert verdict is not None
    assert verdict.error is not None, verdict
    assert verdict.grammar is None
    return verdict.error
