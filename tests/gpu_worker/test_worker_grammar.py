"""Constrained sequences: both engines, late matchers and masks, ends, budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

import phloem_model
from phloem_gpu_worker.core import Limits, WorkerCore
from phloem_gpu_worker.grammar_desk import GrammarDesk
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.matchers import Bits, Engines, Matcher
from phloem_gpu_worker.threads import DaemonPool
from phloem_proto.messages import Grammar

from .cores import core_of, desk_of
from .driver import Driver, Sequence
from .matchers import ANY, Later, Scripted

T = TypeVar("T")
Folder = Callable[[str], Path]
SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","yy"]}},'
    '"required":["a","b"],"additionalProperties":false}'
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> phloem_model.ModelFiles:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHLOEM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return phloem_model.resolve("tiny")


@pytest.fixture(scope="module")
def engines(files: phloem_model.ModelFiles) -> Engines:
    return Engines(files.tokenizer_json, files.vocab_size, files.eos_ids)


def text_core(files: phloem_model.ModelFiles, desk: GrammarDesk) -> WorkerCore:
    decoder = load_decoder(files.weights, torch.float32, torch.device("cpu"))
    return WorkerCore(make_runner(decoder, PoolSize(16, 4096)), Limits(slots=8), files.eos_ids, 1024, desk)


def grammar_of(engine: str, kind: str, source: str) -> Grammar:
    if engine == "xgrammar":
        return Grammar("digest", engine, kind, source)
    from llguidance import LLMatcher

    if kind == "regex":
        return Grammar("digest", engine, kind, LLMatcher.grammar_from_regex(source))
    compact = {"whitespace_flexible": False}
    return Grammar("digest", engine, kind, LLMatcher.grammar_from_json_schema(source, overrides=compact))  # type: ignore[arg-type]


def text_of(files: phloem_model.ModelFiles, sequence: Sequence) -> str:
    """The tiny tokenizer's first 256 ids are the bytes."""
    return bytes(i for i in sequence.output if i < 256).decode()


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_constrained_rows_obey_beside_free_ones(files: phloem_model.ModelFiles, engines: Engines, engine: str) -> None:
    driver = Driver(text_core(files, desk_of(engines.matcher, vocab=files.vocab_size)))
    prompt = list(b"Give me JSON: ")
    greedy = driver.open(0, prompt, grammar=grammar_of(engine, "json_schema", SCHEMA), logit_bias=((ord("}"), 5.0),))
    sampled = driver.open(
        1, prompt, grammar=grammar_of(engine, "json_schema", SCHEMA), temperature=1.0, seed=3, min_tokens=3,
        frequency_penalty=2.0, logprobs=1,
    )  # fmt: skip
    pattern = driver.open(2, prompt, grammar=grammar_of(engine, "regex", "[a-c]{3}-[0-9]{2}"), temperature=2.0)
    free = driver.open(3, prompt, temperature=1.0)
    driver.finish(60)
    for sequence in (greedy, sampled):
        if sequence.ended:
            assert json.loads(text_of(files, sequence))["b"] in ("x", "yy")
        else:
            assert re.match(r'\{"a":-?\d{20,}', text_of(files, sequence))
    assert pattern.ended
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", text_of(files, pattern))
    assert len(free.output) == 60
    assert sampled.failure is greedy.failure is None


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_held_output_is_replayed_into_the_matcher(
    files: phloem_model.ModelFiles, engines: Engines, engine: str
) -> None:
    grammar = grammar_of(engine, "regex", "[a-f]{4}[0-9]{12}")
    outputs: list[list[int]] = []
    for held in (0, 6):
        driver = Driver(text_core(files, desk_of(engines.matcher, vocab=files.vocab_size)))
        sequence = driver.open(
            0, [1, 2, 3], outputs[0][:held] if held else None, grammar=grammar, temperature=1.0, seed=9
        )
        driver.finish(60)
        assert sequence.ended
        outputs.append(sequence.output)
    assert outputs[0] == outputs[1]
    assert re.fullmatch("[a-f]{4}[0-9]{12}", bytes(i for i in outputs[0] if i < 256).decode())


def test_min_tokens_yields_to_a_finished_grammar(files: phloem_model.ModelFiles, engines: Engines) -> None:
    driver = Driver(text_core(files, desk_of(engines.matcher, vocab=files.vocab_size)))
    sequence = driver.open(0, [1], grammar=grammar_of("xgrammar", "regex", "ab"), min_tokens=10)
    driver.finish(20)
    assert sequence.ended
    assert text_of(files, sequence) == "ab"


def test_a_threaded_desk_gives_what_an_inline_one_gives(files: phloem_model.ModelFiles, engines: Engines) -> None:
    outputs = []
    pools: dict[str, Any] = {"builders": DaemonPool("build", 1), "fillers": DaemonPool("fill", 2)}
    for threads in ({}, pools):
        desk = desk_of(engines.matcher, vocab=files.vocab_size, late_steps=100000, **threads)
        driver = Driver(text_core(files, desk))
        for slot in range(6):
            driver.open(
                slot, [slot, 2], grammar=grammar_of("llguidance", "regex", "[a-z]{20}"), temperature=1.0, seed=slot
            )
        driver.finish(30)
        outputs.append([sequence.output for sequence in driver.live.values()])
        for slot in range(6):
            driver.close(slot)
        driver.run({})
        assert len(desk) == 0
    assert outputs[0] == outputs[1]


def test_what_no_engine_takes_fails_its_row(files: phloem_model.ModelFiles, engines: Engines) -> None:
    driver = Driver(text_core(files, desk_of(engines.matcher, vocab=files.vocab_size)))
    unknown = driver.open(0, [1], grammar=Grammar("d", "no-such", "regex", "a"))
    broken = driver.open(1, [1], grammar=Grammar("d", "xgrammar", "regex", "(("))
    wrong = driver.open(2, [1], [ord("z")], grammar=grammar_of("llguidance", "regex", "a+"))
    free = driver.open(3, [1])
    driver.finish(3)
    for sequence in (unknown, broken, wrong):
        assert sequence.failure is not None
        assert sequence.failure.code == "grammar_failed"
    assert len(free.output) == 3


def scripted_driver(folder: Path, matcher: Callable[[], Matcher], **settings: Any) -> Driver:
    return Driver(core_of(folder, desk=desk_of(lambda _: matcher(), **settings)))


def test_a_late_matcher_sits_out_and_loses_nothing(model_folder: Folder) -> None:
    builders = Later()
    driver = scripted_driver(model_folder("llama"), lambda: Scripted([9, 8, 7]), builders=builders)
    constrained, free = driver.open(0, [1, 2, 3], grammar=ANY), driver.open(1, [4, 5])
    assert driver.run({0: 3, 1: 2}).yields == b"\0\1"
    assert driver.run({0: 0, 1: 0}).yields == b"\0\1"
    assert driver.run({0: 0}).yields == b"\0"
    builders.do_all()
    assert driver.run({0: 0, 1: 0}).yields == b"\1\1"
    driver.finish(3)
    assert constrained.output == [9, 8, 7]
    assert constrained.ended
    assert len(free.output) == 3
    assert driver.run({0: 0}).yields == b"\0"


def test_a_late_mask_is_used_in_the_next_step(model_folder: Folder) -> None:
    fillers = Later()
    driver = scripted_driver(model_folder("llama"), lambda: Scripted([9, 8]), fillers=fillers)
    constrained, free = driver.open(0, [1, 2, 3], grammar=ANY), driver.open(1, [4, 5])
    assert driver.run({0: 3, 1: 2}).yields == b"\0\1"
    assert driver.run({0: 0, 1: 0}).yields == b"\0\1"
    assert len(fillers.jobs) == 1
    fillers.do_all()
    assert driver.run({0: 0, 1: 0}).yields == b"\1\1"
    assert constrained.output == [9]
    assert len(free.output) == 3


def test_closing_a_slot_forgets_its_matcher_even_while_it_is_built(model_folder: Folder) -> None:
    builders, fillers = Later(), Later()
    driver = scripted_driver(model_folder("llama"), lambda: Scripted([9, 8]), builders=builders, fillers=fillers)
    driver.open(0, [1, 2], grammar=ANY)
    driver.run({0: 2})
    driver.close(0)
    driver.run({})
    builders.do_all()
    driver.open(0, [1, 2], grammar=ANY)
    builders.do_all()
    driver.run({0: 2})
    driver.close(0)
    sequence = driver.open(0, [1, 2], grammar=ANY)
    driver.run({0: 2})
    builders.do_all()
    fillers.do_all()
    driver.run({0: 0})
    fillers.do_all()
    driver.run({0: 0})
    assert sequence.output == [9]


class Meter:
    """CPU time that advances when a matcher says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def cost(self, ms: float) -> Callable[[], None]:
        def spend() -> None:
            self.now += ms / 1e3

        return spend


@pytest.mark.parametrize(("ms", "tokens"), [(60.0, 0), (6.0, 13), (4.0, 40)])
def test_masks_over_budget_end_their_row_only(model_folder: Folder, ms: float, tokens: int) -> None:
    """60 ms once is too much; 6 ms are too much once 16 masks' allowance of 80 ms is used up; 4 ms are fine."""
    meter = Meter()
    driver = scripted_driver(model_folder("llama"), lambda: Scripted([9] * 40, meter.cost(ms)), cpu_s=lambda: meter.now)
    slow, free = driver.open(0, [1, 2, 3], grammar=ANY), driver.open(1, [4, 5])
    driver.finish(40)
    assert len(free.output) == 40
    assert len(slow.output) == tokens
    if tokens == 40:
        assert slow.ended
    else:
        assert slow.failure is not None
        assert slow.failure.code == "grammar_too_slow"


def test_a_mask_that_never_comes_ends_its_row(model_folder: Folder) -> None:
    driver = scripted_driver(model_folder("llama"), lambda: Scripted([9]), fillers=Later(), late_steps=5)
    stuck, free = driver.open(0, [1, 2, 3], grammar=ANY), driver.open(1, [4, 5])
    driver.finish(10)
    assert len(free.output) == 10
    assert stuck.failure is not None
    assert stuck.failure.code == "grammar_too_slow"


def test_a_mask_without_any_token_ends_its_row(model_folder: Folder) -> None:
    class Nothing(Scripted):
        def fill(self, bits: Bits) -> None:
            bits.fill(0)

    driver = scripted_driver(model_folder("llama"), lambda: Nothing([9]))
    sequence = driver.open(0, [1, 2, 3], grammar=ANY)
    driver.finish(10)
    assert sequence.failure is not None
    assert sequence.failure.code == "grammar_failed"
