"""The core as plain calls: who waits for what, what is remembered, and for how long."""

from __future__ import annotations

import pytest

from phloem_grammar.cache import LruCache
from phloem_grammar.core import Bounds
from phloem_grammar.engine import Compiled, Died, Lost, Outcome, Rejected
from tests.grammar.judging import asked, new_core, refusal, regex, schema

DONE = Compiled("grammar text", compile_ms=1.5, first_mask_ms=0.25, memory_bytes=10)


def test_a_compiled_grammar_is_answered_and_cached() -> None:
    core = new_core()
    ticket, start = asked(core, schema({"type": "string"}))
    assert start.engine == "llguidance"
    [(told, verdict)] = core.finish(start.digest, DONE)
    assert told == ticket
    assert verdict.grammar is not None
    assert (verdict.grammar.engine, verdict.grammar.kind, verdict.grammar.source) == (
        "llguidance",
        "json_schema",
        "grammar text",
    )
    assert (verdict.compile_ms, verdict.first_mask_ms, verdict.memory_bytes, verdict.cached) == (1.5, 0.25, 10, False)
    again = core.ask(99, schema('{"type" : "string"}'))
    assert again is not None
    assert again.cached
    assert again.grammar == verdict.grammar
    assert core.known(schema('{"type" : "string"}')) == again
    assert core.waiting == core.running == 0


def test_one_compile_serves_all_who_ask_meanwhile_and_outlives_a_cancel() -> None:
    core = new_core()
    assert core.ask(1, regex("a+")) is None
    assert core.ask(2, regex("a+")) is None
    start = core.next_task()
    assert start is not None
    assert core.ask(3, regex("a+")) is None
    assert core.next_task() is None, "one compile only"
    core.cancel(1)
    answers = core.finish(start.digest, DONE)
    assert [ticket for ticket, _ in answers] == [2, 3]


def test_a_compile_that_everybody_left_still_fills_the_cache() -> None:
    core = new_core()
    ticket, start = asked(core, regex("a+"))
    core.cancel(ticket)
    assert core.finish(start.digest, DONE) == []
    assert core.known(regex("a+")) is not None


def test_a_waiting_compile_that_everybody_left_is_not_started() -> None:
    core = new_core(Bounds(running=1))
    _, running = asked(core, regex("a"))
    assert core.ask(1000, regex("b")) is None
    core.cancel(1000)
    core.finish(running.digest, DONE)
    assert core.next_task() is None
    assert core.ask(1001, regex("b")) is None
    assert core.next_task() is not None


def test_bounds_on_running_and_waiting() -> None:
    core = new_core(Bounds(running=2, waiting=3))
    for number in range(3):
        assert core.ask(number, regex(f"a{number}")) is None
    assert core.next_task() is not None
    assert core.next_task() is not None
    assert core.next_task() is None
    busy = refusal(core.ask(9, regex("b")))
    assert busy.code == "busy"
    assert busy.retry_after_ms > 0
    assert core.known(regex("b")) is None, "busy is no verdict"


def test_first_come_first_compiled() -> None:
    core = new_core(Bounds(running=1))
    for number in range(5):
        core.ask(number, regex(f"a{number}"))
    order = []
    while (start := core.next_task()) is not None:
        order.append(start.task.source)
        core.finish(start.digest, DONE)
    assert order == [f"a{number}" for number in range(5)]


def test_a_schema_llguidance_refuses_goes_to_xgrammar_if_proved() -> None:
    core = new_core()
    ticket, start = asked(core, schema({"oneOf": [{"type": "string"}, {"type": "boolean"}]}))
    assert core.finish(start.digest, Rejected("oneOf constraints are not supported")) == []
    second = core.next_task()
    assert second is not None
    assert (second.engine, second.digest) == ("xgrammar", start.digest)
    [(told, verdict)] = core.finish(second.digest, DONE)
    assert told == ticket
    assert verdict.grammar is not None
    assert verdict.grammar.engine == "xgrammar"


def test_when_both_engines_refuse_the_first_reason_is_told_with_its_place() -> None:
    core = new_core()
    _, start = asked(core, schema({"items": {"oneOf": [{"type": "string"}, {"type": "boolean"}]}, "type": "array"}))
    core.finish(start.digest, Rejected("oneOf constraints are not supported"))
    second = core.next_task()
    assert second is not None
    [(_, verdict)] = core.finish(second.digest, Rejected("cannot"))
    error = refusal(verdict)
    assert error.code == "grammar_unsupported"
    assert "oneOf" in error.message
    assert "/items/oneOf" in error.message


def test_what_xgrammar_is_not_proved_to_enforce_never_gets_there() -> None:
    core = new_core()
    _, start = asked(core, schema({"type": "array", "uniqueItems": True}))
    [(_, verdict)] = core.finish(start.digest, Rejected('Unimplemented keys: ["uniqueItems"]'))
    error = refusal(verdict)
    assert error.code == "grammar_unsupported"
    assert "uniqueItems" in error.message
    assert "/uniqueItems" in error.message
    assert core.ask(7, schema({"type": "array", "uniqueItems": True})) is not None, "refusals are remembered"


def test_too_many_enum_values_for_xgrammar() -> None:
    core = new_core()
    _, start = asked(core, schema({"enum": list(range(1_001))}))
    [(_, verdict)] = core.finish(start.digest, Rejected("no"))
    assert refusal(verdict).code == "grammar_unsupported"


@pytest.mark.parametrize("cause", ["cpu", "memory"])
def test_over_a_limit_once_is_poison(cause: str) -> None:
    core = new_core()
    _, start = asked(core, regex("a"))
    [(_, verdict)] = core.finish(start.digest, Died(cause))
    error = refusal(verdict)
    assert error.code == "grammar_too_large"
    assert f"compile_{cause}" in error.message
    assert refusal(core.ask(5, regex("a"))) == error


@pytest.mark.parametrize("cause", ["crash", "wall"])
def test_other_deaths_are_poison_the_second_time(cause: str) -> None:
    core = new_core()
    for _ in range(2):
        _, start = asked(core, regex("a"))
        [(_, verdict)] = core.finish(start.digest, Died(cause))
        refusal(verdict)
    assert refusal(core.ask(5, regex("a"))).code == "grammar_too_large"


def test_a_starved_compile_is_no_poison() -> None:
    core = new_core()
    for _ in range(5):
        _, start = asked(core, regex("a"))
        [(_, verdict)] = core.finish(start.digest, Died("wall", starved=True))
        assert refusal(verdict).code == "busy"


def test_a_lost_compile_is_tried_once_more() -> None:
    core = new_core()
    ticket, start = asked(core, regex("a"))
    assert core.finish(start.digest, Lost()) == []
    again = core.next_task()
    assert again == start
    [(told, verdict)] = core.finish(start.digest, Lost())
    assert told == ticket
    assert refusal(verdict).code == "unavailable"
    asked(core, regex("a"))


def test_the_digest_depends_on_kind_source_and_tokenizer() -> None:
    digests = {asked(new_core(), spec)[1].digest for spec in (regex("{}"), schema("{}"), schema({"type": "null"}))}
    assert len(digests) == 3
    assert asked(new_core(), regex("a"))[1].digest == asked(new_core(), regex("a"))[1].digest


def test_caches_stay_within_their_bounds() -> None:
    core = new_core(Bounds(cache_bytes=20_000, refusals=3, spellings=50))
    outcomes: list[Outcome] = [Compiled("x" * 1_000, 1.0, 1.0), Rejected("no")]
    for number in range(60):
        _, start = asked(core, regex(f"a{number}"))
        core.finish(start.digest, outcomes[number % 2])
    kept = [number for number in range(60) if core.known(regex(f"a{number}")) is not None]
    assert [number for number in kept if number % 2] == [55, 57, 59]
    assert [number for number in kept if number % 2 == 0] == [54, 56, 58]


def test_a_verdict_too_large_to_send_is_refused() -> None:
    core = new_core()
    _, start = asked(core, regex("a"))
    [(_, verdict)] = core.finish(start.digest, Compiled("x" * 800_000, 1.0, 1.0))
    assert "verdict_bytes" in refusal(verdict).message


def test_lru_cache_by_cost() -> None:
    cache: LruCache[str] = LruCache(10, len)
    cache.put("a", "1234")
    cache.put("b", "1234")
    assert cache.get("a") == "1234"
    cache.put("c", "1234")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("1234", None, "1234")
    cache.put("a", "1")
    assert cache.used == 5
    cache.put("d", "x" * 11)
    assert cache.get("d") is None
    assert len(cache) == 2
