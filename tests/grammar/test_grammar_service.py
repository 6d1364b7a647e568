"""The service on an in-memory bus, on both event loops: calls, deadlines, single flight, presence and drain."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from phloem_bus.local import LocalBroker
from phloem_bus.node import Node, Received
from phloem_bus.presence import Presence
from phloem_bus.process import Threads
from phloem_bus.service import ServiceContext
from phloem_grammar.config import GrammarConfig
from phloem_grammar.engine import Compiled, Died, Lost, Outcome, Task, TokenizerSource
from phloem_grammar.runner import InlineRunner, Runner
from phloem_grammar.sandbox import SandboxError
from phloem_grammar.service import GrammarService
from phloem_model.tiny import write_tiny
from phloem_proto.messages import Beat, Compile, GrammarSpec, Profile, SchedulerInbox, Verdict
from phloem_proto.subjects import Role
from tests.grammar.judging import regex, schema, until
from tests.grammar.languages import Tokenizers

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class Held:
    """A runner that comes to ``outcome`` when it is told to."""

    def __init__(self, outcome: Outcome | SandboxError | None = None) -> None:
        self.started: list[Task] = []
        self.outcome = outcome
        self.go = anyio.Event()

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def run(self, engine: str, task: Task) -> Outcome:
        self.started.append(task)
        await self.go.wait()
        if isinstance(self.outcome, SandboxError):
            raise self.outcome
        return self.outcome or Compiled(task.source, 1.0, 1.0)


class World:
    """One grammar service and a scheduler's place on the bus."""

    def __init__(self, node: Node, presence: Presence, drain: anyio.Event) -> None:
        self.node = node
        self.presence = presence
        self.drain = drain
        self.done = anyio.Event()
        self.states: list[str] = []
        self.waiting = 0
        """Callers who wait, as its last beat says."""

    def heard(self, received: Received[Beat]) -> None:
        self.states.append(received.message.state)
        self.waiting = received.message.load.waiting

    async def ask(self, spec: GrammarSpec, *, deadline_ms: int = 0, rid: bytes = b"") -> Verdict:
        reply, _ = await self.presence.call(Role.GRAMMAR, Compile(spec, deadline_ms, rid), Verdict, timeout=30.0)
        return reply


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder)
    return folder


def context(broker: LocalBroker, role: Role) -> ServiceContext:
    return ServiceContext(
        bus=broker.connect(role),
        role=role,
        instance=f"{role}-1",
        incarnation=1,
        namespace="test",
        model="tiny",
        rng=random.Random(role),
        offload=Threads(),
        drain=anyio.Event(),
        drain_s=5.0,
    )


@asynccontextmanager
async def world(
    model: Path,
    runner: Callable[[TokenizerSource, ServiceContext], Runner] | None = None,
    *,
    compiles: int = 2,
    compiles_waiting: int = 256,
) -> AsyncIterator[World]:
    broker = LocalBroker()
    config = GrammarConfig(str(model), compiles, compiles_waiting, compile_priority="normal")
    service = GrammarService(config, make_runner=runner)
    grammar, scheduler = context(broker, Role.GRAMMAR), context(broker, Role.SCHEDULER)
    node = scheduler.node()
    presence = Presence(node, tells=[Role.GRAMMAR], watches=[Role.GRAMMAR], profile=lambda: Profile("tiny"))
    here = World(node, presence, grammar.drain)
    node.on(Beat, here.heard)

    async def serve() -> None:
        await service.run(grammar)
        here.done.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(node.run, SchedulerInbox)
        tasks.start_soon(presence.run)
        tasks.start_soon(serve)
        await until(lambda: presence.choose(Role.GRAMMAR))
        yield here
        tasks.cancel_scope.cancel()


async def all_of(*calls: Callable[[], object]) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)  # type: ignore[arg-type]


async def test_twenty_schemas_and_ten_regexes_at_once_in_sandboxes(model: Path, tokenizers: Tokenizers) -> None:
    specs = [
        schema({"type": "object", "properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]})
        for i in range(20)
    ]
    specs += [regex(f"[a-z]{{{i},{i + 3}}}") for i in range(10)]
    verdicts: dict[str, Verdict] = {}
    async with world(model) as here:

        async def one(spec: GrammarSpec) -> None:
            verdicts[spec.source] = await here.ask(spec)

        await all_of(*(lambda spec=spec: one(spec) for spec in specs))
        again = await here.ask(specs[0])
    assert len(verdicts) == 30
    for number in range(20):
        grammar = verdicts[specs[number].source].grammar
        assert grammar is not None
        language = tokenizers.language(grammar.engine, grammar.source)
        assert language.contains(f'{{"p{number}":1}}')
        assert not language.contains("{}")
    first = verdicts[specs[0].source]
    assert again.cached
    assert again.grammar == first.grammar
    assert first.compile_ms > 0
    assert first.first_mask_ms > 0


async def test_a_bad_grammar_gets_its_reason_and_the_next_one_is_served(model: Path) -> None:
    async with world(model) as here:
        bad = await here.ask(schema({"type": "array", "contains": {"const": 1}}))
        assert bad.error is not None
        assert (bad.error.code, bad.error.param) == ("grammar_unsupported", "grammar")
        assert "/contains" in bad.error.message
        assert (await here.ask(GrammarSpec("json_object", ""))).grammar is not None


async def test_single_flight_and_a_deadline_that_stops_only_its_own_wait(model: Path) -> None:
    held = Held()
    async with world(model, lambda *_: held) as here:
        verdicts: list[Verdict] = []

        async def one(deadline_ms: int) -> None:
            verdicts.append(await here.ask(regex("a+"), deadline_ms=deadline_ms))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, 100)
            tasks.start_soon(one, 0)
            await until(lambda: verdicts)
            assert verdicts[0].error is not None
            assert verdicts[0].error.code == "deadline"
            held.go.set()
        assert verdicts[1].grammar is not None
        assert [task.source for task in held.started] == ["a+"]


async def test_no_more_run_or_wait_than_allowed(model: Path) -> None:
    held = Held()
    async with world(model, lambda *_: held, compiles=2, compiles_waiting=3) as here:
        verdicts: list[Verdict] = []

        async def one(number: int) -> None:
            verdicts.append(await here.ask(regex(f"a{number}")))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(one, number)
            await until(lambda: len(verdicts) == 2)
            assert len(held.started) == 2
            assert [verdict.error.code for verdict in verdicts if verdict.error] == ["busy", "busy"]
            held.go.set()
        assert sum(verdict.grammar is not None for verdict in verdicts) == 3


async def test_drain_finishes_what_runs_and_turns_away_what_comes(model: Path) -> None:
    held = Held()
    async with world(model, lambda *_: held) as here:
        verdicts: list[Verdict] = []

        async def one() -> None:
            verdicts.append(await here.ask(regex("a")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            await until(lambda: held.started)
            here.drain.set()
            await until(lambda: "draining" in here.states)
            late = await here.node.call(Role.GRAMMAR, "grammar-1", Compile(regex("b")), Verdict, timeout=5.0)
            assert late.error is not None
            assert late.error.code == "draining"
            held.go.set()
        assert verdicts[0].grammar is not None
        with anyio.fail_after(5):
            await here.done.wait()
        assert here.presence.get(Role.GRAMMAR, "grammar-1") is None, "it said goodbye"


async def test_inline_runner_gives_the_same_verdict_as_a_sandbox(model: Path) -> None:
    spec = schema({"type": "array", "items": {"enum": ["x", 1]}})
    found = []
    for runner in (None, lambda source, ctx: InlineRunner(source, ctx.offload)):
        async with world(model, runner) as here:
            found.append(await here.ask(spec))
    assert found[0].grammar == found[1].grammar
    assert json.loads(spec.source) == {"type": "array", "items": {"enum": ["x", 1]}}


FIRST, SECOND = b"\x11" * 16, b"\x22" * 16


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Level, request and text of the service's lines."""
    found = [record for record in caplog.records if record.name == "phloem.grammar"]
    return [(record.levelname, getattr(record, "request_id", ""), record.getMessage()) for record in found]


async def test_answers_are_told_under_the_request_that_asks(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phloem")
    held = Held()
    held.go.set()
    async with world(model, lambda *_: held) as here:
        await here.ask(regex("a+"), rid=FIRST)
        await here.ask(regex("a+"), rid=SECOND)
        await here.ask(regex("a" * 5000), rid=SECOND)
    told = lines(caplog)
    assert told[:2] == [("DEBUG", rid[:4].hex(), "its grammar goes to llguidance") for rid in (FIRST, SECOND)]
    assert told[2][:2] == ("INFO", SECOND[:4].hex())
    assert "regex_bytes" in told[2][2]


@pytest.mark.parametrize(
    ("outcome", "texts"),
    [
        (Died("cpu"), ["the compile by llguidance was ended (cpu)"]),
        (Died("crash", "SIGSEGV"), ["the compile by llguidance was ended (crash): SIGSEGV"]),
        (Lost("gone"), ["the compile by llguidance was lost: gone"] * 2),
        (SandboxError("no such tokenizer"), ["engine llguidance can't be loaded: no such tokenizer"]),
    ],
)
async def test_what_becomes_of_a_compile_is_told_under_the_request_that_asked_first(
    model: Path, caplog: pytest.LogCaptureFixture, outcome: Outcome | SandboxError, texts: list[str]
) -> None:
    caplog.set_level(logging.DEBUG, "phloem")
    held = Held(outcome)
    async with world(model, lambda *_: held) as here, anyio.create_task_group() as tasks:

        async def one(rid: bytes) -> None:
            assert (await here.ask(regex("a+"), rid=rid)).error is not None

        tasks.start_soon(one, FIRST)
        await until(lambda: held.started)
        tasks.start_soon(one, SECOND)
        await until(lambda: here.waiting == 2)
        held.go.set()
    told = lines(caplog)
    assert [(rid, text) for level, rid, text in told if level == "WARNING"] == [(FIRST[:4].hex(), t) for t in texts]
    assert sorted(rid for level, rid, _ in told if level == "INFO") == [FIRST[:4].hex(), SECOND[:4].hex()]
