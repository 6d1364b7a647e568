"""Workloads: equal seeds give equal requests, lengths follow the fit, and what should be shared is shared."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import jsonschema_rs
import pytest

from phloem.bench.plan import BadOption, Plan, Workload, turns
from phloem.bench.schemas import SCHEMAS
from phloem.bench.traces import TraceError, azure, mooncake, read, workload
from phloem.bench.words import WORDS, Fit, fit, text
from phloem.bench.workload import Lengths, SharedPrefix, json_answers, poisson, shared_prefix, single, unique

DATA = Path(os.environ.get("PHLOEM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
MOONCAKE = """\
{"timestamp": 100, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}

{"timestamp": 100, "input_length": 1200, "output_length": 3, "hash_ids": [0, 1, 7]}
{"timestamp": 3100, "input_length": 700, "output_length": 90, "hash_ids": [8, 9]}
"""
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)


def words(text_: str) -> int:
    return len(text_.split())


def test_fit_finds_how_a_server_counts() -> None:
    found = fit(32, 10 + 2 * 32, 160, 10 + 2 * 160)
    assert (found.per_word, found.fixed) == (2.0, 10.0)
    assert found.words_for(110, whole_prompt=True) == 50
    assert found.words_for(110, whole_prompt=False) == 55
    assert found.words_for(3, whole_prompt=True) == 1
    with pytest.raises(ValueError, match="do not fit"):
        fit(32, 50, 160, 50)


def test_words_are_many_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) > 400
    assert words(text(random.Random(1), 37)) == 37


def test_unique_prompts_share_nothing_and_follow_the_seed() -> None:
    items = unique(20, Lengths(110, 16), Fit(2.0, 10.0), seed=3)
    assert items == unique(20, Lengths(110, 16), Fit(2.0, 10.0), seed=3)
    assert items != unique(20, Lengths(110, 16), Fit(2.0, 10.0), seed=4)
    assert {words(item.prompt) for item in items} == {50}
    assert {item.output_tokens for item in items} == {16}
    assert len({" ".join(item.prompt.split()[:4]) for item in items}) == 20


def test_range_ratio_draws_both_lengths() -> None:
    items = unique(200, Lengths(100, 40, 0.5), Fit(), seed=0)
    assert {words(item.prompt) for item in items} <= set(range(50, 101))
    assert {item.output_tokens for item in items} == set(range(20, 41))


def test_single_is_one_prompt_again_and_again() -> None:
    assert len({item.prompt for item in single(5, Lengths(30, 4), Fit(), seed=0)}) == 1


def test_shared_prefix_groups() -> None:
    spec = SharedPrefix(groups=3, per_group=4, prefix_tokens=60, question_tokens=8, output_tokens=5)
    items = shared_prefix(spec, Fit(), seed=1)
    assert len(items) == 12
    assert len({item.system for item in items}) == 3
    assert len({item.user for item in items}) == 12
    assert all(words(item.system) == 60 and words(item.user) == 8 for item in items)
    assert all(item.prompt == f"{item.system}\n\n{item.user}" for item in items)
    assert [item.group for item in items] != sorted(item.group for item in items)
    ordered = shared_prefix(SharedPrefix(3, 4, 60, 8, 5, ordered=True), Fit(), seed=1)
    assert [item.group for item in ordered] == sorted(item.group for item in items)


def test_json_items_go_through_every_schema_in_turn() -> None:
    items = json_answers(13, 200, seed=0)
    assert [item.schema for item in items[:6]] == list(SCHEMAS.values())
    assert items[6].schema == items[0].schema
    assert items[6].user != items[0].user


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_sound_and_closed(name: str) -> None:
    jsonschema_rs.meta.validate(SCHEMAS[name])
    assert SCHEMAS[name]["additionalProperties"] is False
    assert not jsonschema_rs.is_valid(SCHEMAS[name], {})


def test_poisson_arrivals_keep_their_rate() -> None:
    items = poisson(unique(2000, Lengths(4, 1), Fit(), 0), rate=50.0, seed=7)
    times = [item.at_s for item in items if item.at_s is not None]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(50, rel=0.1)
    with pytest.raises(ValueError, match="positive"):
        poisson(items, 0.0, 0)


def test_mooncake_blocks_become_shared_text() -> None:
    items = workload(mooncake(MOONCAKE.splitlines()), Fit(), 5, scale=1 / 16, speedup=10, max_input=1000, max_output=20)
    assert [words(item.prompt) for item in items] == [69, 75, 44]
    assert [item.output_tokens for item in items] == [20, 1, 6]
    first, second, third = (item.prompt.split() for item in items)
    assert first[:64] == second[:64]  # blocks 0 and 1, 32 words each
    assert first[64:69] != second[64:69]
    assert third[:32] != first[:32]


def test_traces_start_at_zero_and_say_which_line_is_bad(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    (tmp_path / "t.csv").write_text(AZURE)
    assert [one.at_s for one in read(tmp_path / "t.jsonl", 10)] == [0.0, 0.0, 3.0]
    arrivals = read(tmp_path / "t.csv", 10)
    assert [(one.input_tokens, one.output_tokens) for one in arrivals] == [(374, 44), (396, 109)]
    assert arrivals[1].at_s == pytest.approx(4.314579)
    assert len(read(tmp_path / "t.csv", 1)) == 1
    with pytest.raises(TraceError, match="line 3"):
        list(azure((AZURE.replace("396", "many")).splitlines()))
    with pytest.raises(TraceError, match="line 1"):
        list(mooncake(['{"timestamp": 1}']))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match="no request"):
        read(tmp_path / "empty.jsonl", 5)


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not beside this checkout")
@pytest.mark.parametrize("name", ["mooncake_conversation_trace.jsonl", "azure_conv_2023.csv"])
def test_recorded_traces_are_read_whole(name: str) -> None:
    arrivals = read(DATA / name, 1_000_000)
    assert len(arrivals) > 10_000
    assert all(later.at_s >= earlier.at_s for earlier, later in pairwise(arrivals))
    items = workload(arrivals[:200], Fit(), 0, scale=1 / 16, speedup=2, max_input=1536, max_output=64)
    assert all(1 <= words(item.prompt) <= 1536 and 1 <= item.output_tokens <= 64 for item in items)


def test_rounds_draw_fresh_prompts_unless_told_otherwise() -> None:
    fresh, same = Plan(num_prompts=3), Plan(num_prompts=3, same_prompts=True)
    assert fresh.items(0, Fit()) != fresh.items(1, Fit())
    assert same.items(0, Fit()) == same.items(1, Fit())
    measured = {item.prompt for item in fresh.items(0, Fit())}
    assert not measured & {item.prompt for item in fresh.warmup_items(Fit())}
    assert Plan(warmup=0).warmup_items(Fit()) == []


def test_open_loops_have_times_and_room() -> None:
    plan = Plan(num_prompts=4, request_rate=10.0)
    assert all(item.at_s is not None for item in plan.items(0, Fit()))
    assert plan.in_flight == 1000
    assert Plan().in_flight == 16
    assert all(item.at_s is None for item in plan.warmup_items(Fit()))
    assert Plan(workload=Workload.SHARED_PREFIX, groups=3, prompts_per_group=5).requests == 15


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"num_prompts": 0}, "--num-prompts"),
        ({"range_ratio": 1.5}, "--range-ratio"),
        ({"request_rate": 0.0}, "--request-rate"),
        ({"concurrency": 2000}, "--concurrency"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"workload": Workload.TRACE}, "--trace"),
        ({"trace": Path("x")}, "--trace"),
        ({"speedup": -1.0}, "--speedup"),
        ({"warmup": -1}, "--warmup"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], names: str) -> None:
    with pytest.raises(BadOption, match=names):
        Plan(**options)  # type: ignore[arg-type]


def test_turns_alternate_who_goes_first() -> None:
    assert turns(3, ["A", "B"]) == [(0, "A"), (0, "B"), (1, "B"), (1, "A"), (2, "A"), (2, "B")]
    assert turns(2, ["A"]) == [(0, "A"), (1, "A")]
