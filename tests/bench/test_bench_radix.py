"""What the tree and the queue cost: the parts by hand, and a small run of the whole command."""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.radix.aims import aims
from phloem.bench.radix.bed import Bed
from phloem.bench.radix.clock import Clock, Figure, Stopwatch
from phloem.bench.radix.drive import DETOKENISER, Drive
from phloem.bench.radix.memory import Memory
from phloem.bench.radix.passes import Load, Passes
from phloem.bench.radix.plot import plot
from phloem.bench.radix.prompts import Prompts
from phloem.bench.radix.run import RadixOutcome, RadixPlan, Scene, Shape
from phloem.bench.radix.textbook import in_order
from phloem.bench.radix.worst import Worst
from phloem_scheduler.node import Node

PICTURE = (960, 2160, 4)
"""Height and width in pixels, and channels."""


def maker(name: str, count: int = 60) -> Prompts:
    return Shape(name, count).prompts(4, random.Random(1))


def depth(node: Node) -> int:
    """Nodes above it, the root not counted."""
    count = 0
    while node.parent is not None and node.parent.parent is not None:
        count, node = count + 1, node.parent
    return count


@pytest.mark.parametrize("name", ["grouped", "flat", "chain"])
def test_prompts_are_all_different_and_cut_only_at_pages(name: str) -> None:
    prompts = maker(name)
    drawn = [prompts.draw() for _ in range(200)]
    assert len(set(drawn)) == 200
    assert len({len(prompt) % 16 for prompt in drawn}) > 1
    assert all(len(prompt) % 4 == 0 for prompt in drawn)
    for tokens in (3, 64, 5000):
        assert len(prompts.long(tokens)) == 4 * tokens


def test_the_shapes_have_the_form_they_are_named_for() -> None:
    beds = {}
    for name, count in (("grouped", 400), ("flat", 60), ("chain", 60)):
        prompts, bed = maker(name, count), Bed(4)
        for _ in range(count):
            bed.store(prompts.draw())
        bed.tree.check()
        beds[name] = bed
    deepest = {name: max(map(depth, bed.tree.nodes())) for name, bed in beds.items()}
    assert deepest["flat"] == 1
    assert deepest["grouped"] >= 3
    assert deepest["chain"] == 59  # nobody branches off before the last step but one
    (root,) = beds["flat"].tree.roots.values()
    (top,) = root.children.values()
    assert len(top.children) == 60


@pytest.mark.parametrize("name", ["grouped", "flat", "chain"])
def test_the_textbook_and_the_queue_pick_the_same_first_when_only_matches_count(name: str) -> None:
    prompts, bed = maker(name), Bed(4)
    cached = [prompts.draw() for _ in range(40)]
    for prompt in cached:
        bed.store(prompt)
    # All have come at the same time but for one millisecond, which is worth less than a page.
    for _ in range(40):
        bed.queue.add(bed.choice(prompts.draw()))
    longest = bed.choice(cached[7] + prompts.draw())
    bed.queue.add(longest)
    order = in_order(bed.tree, bed.cache.shelf, list(bed.queue))
    assert len(order) == 41
    matched = [bed.tree.find(("", ""), bed.whole_pages(choice.request.ids), bed.cache.shelf)[1] for choice in order]
    assert matched == sorted(matched, reverse=True)
    assert bed.queue.first() in [choice for choice, pages in zip(order, matched, strict=True) if pages == matched[0]]


def test_a_stopwatch_tells_collections_apart_from_what_is_timed() -> None:
    def collect() -> None:
        gc.collect()

    with Clock() as clock:
        stopwatch, quiet = Stopwatch(clock), Stopwatch(clock)
        for _ in range(5):
            stopwatch.time(collect)
        assert quiet.time(sum, [1, 2]) == 3
    figure = stopwatch.figure()
    assert figure is not None
    assert (figure.samples, figure.collections) == (5, 5)
    assert figure.longest_collection_us > 10 * figure.p50_us
    assert Stopwatch(clock).figure() is None
    parts = quiet.figure(parts=2)
    assert parts is not None
    assert parts.collections == 0
    assert clock._collection not in gc.callbacks


def test_the_worker_without_a_device_answers_whole_requests() -> None:
    drive = Drive(page_size=4, rows=2, queued=10, sequence_tokens=64)
    prompts = [random.Random(number).randbytes(4 * 21) for number in range(5)]
    for prompt in prompts:
        drive.open(drive.message(prompt, 7))
    ended = 0
    drive.decide()
    while drive.plans:
        drive.turn()
        ended += drive.let_go()
        drive.core.check()
    assert ended == 5
    assert drive.core.counters.output_tokens == 5 * 7
    assert drive.core.idle
    assert DETOKENISER in drive.core.outbox.linked


def figure(p50_us: float) -> Figure:
    return Figure(10, p50_us, p50_us, p50_us, 0, 0.0)


def outcome(pick_us: float, textbook_us: float, match_us: float, pass_ms: float, worst_ms: float) -> RadixOutcome:
    memory = Memory(1, 1, 1, 1, 1, 1)
    scenes = [
        Scene(
            Shape("grouped", size),
            size,
            {"match_4096": figure(match_us)},
            {"pick": figure(pick), "pick_small": figure(5.0), "textbook": figure(textbook_us)},
            memory,
            0.0,
        )
        for size, pick in ((10, 5.0), (10_000, pick_us))
    ]
    passes = [Passes(128, 0, Load.DECODE, figure(pass_ms * 1e3))]
    return RadixOutcome(scenes, passes, [Worst("all", 1, 1.0, Figure(1, 1, 1, worst_ms * 1e3 - 500, 1, 500))])


def test_aims_hold_or_not() -> None:
    good = aims(outcome(15.0, 1500.0, 99.0, 2.0, 20.0))
    assert [aim.holds for aim in good] == [True] * 5
    bad = aims(outcome(15.1, 1500.0, 101.0, 2.1, 20.1))
    assert [aim.holds for aim in bad] == [False] * 5
    assert [aim.value for aim in good] == pytest.approx([3.0, 100.0, 99.0, 1.0, 20.0])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--sizes", "0"], "--sizes"),
        (["--sizes", "10,many"], "--sizes"),
        (["--sizes", "2000000"], "--sizes"),
        (["--repeat", "0"], "--repeat"),
        (["--page-size", "257"], "--page-size"),
    ],
)
def test_what_can_not_be_measured_is_refused_at_once(options: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["radix", *options])
    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_folder_that_is_not_there_is_noticed_before_anything_is_measured(option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["radix", option, str(tmp_path / "none" / "radix.file")])
    assert result.exit_code == 1
    assert result.output == f"phloem bench: {option}: the folder {tmp_path / 'none'} does not exist\n"


def test_without_matplotlib_a_picture_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["radix", "--plot", str(tmp_path / "radix.png")])
    assert result.exit_code == 2
    assert result.output == "phloem bench: --plot needs matplotlib: install Phloem with the extra 'bench'\n"


def test_what_took_no_time_or_was_not_measured_is_left_out_of_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "radix.png"
    plot(RadixPlan(), outcome(0.0, 0.0, 0.0, 0.0, 0.0), picture)
    assert imread(picture).shape == PICTURE
    with pytest.raises(OSError, match=r"radix\.png"):
        plot(RadixPlan(), outcome(1.0, 1.0, 1.0, 1.0, 1.0), picture / "below.png")


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_a_small_run_measures_everything_and_leaves_the_collector_as_it_was(page_size: int, tmp_path: Path) -> None:
    before = gc.get_threshold(), list(gc.callbacks), gc.isenabled()
    file, picture = tmp_path / "radix.json", tmp_path / "radix.png"
    result = CliRunner().invoke(
        app,
        [
            *("radix", "--sizes", "10,70", "--repeat", "5", "--page-size", str(page_size), "--quiet"),
            *("--output", str(file), "--plot", str(picture)),
        ],
        env={"COLUMNS": "200"},
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    assert (gc.get_threshold(), list(gc.callbacks), gc.isenabled()) == before
    for text in ("textbook / a pick", "tree: bytes per cached token", "the cache is flushed", "the longest call"):
        assert text in result.output
    assert imread(picture).shape == PICTURE
    assert imread(picture).std() > 0
    document = json.loads(file.read_text())
    assert document["kind"] == "phloem-bench-radix"
    assert [(scene["shape"], scene["size"]) for scene in document["scenes"]] == [
        ("grouped", 10),
        ("grouped", 70),
        ("flat", 70),
        ("chain", 70),
    ]
    for scene in document["scenes"]:
        for name in (
            "match_4096",
            "insert",
            "split",
            "evict_page",
            "add",
            "remove",
            "pick",
            "hide",
            "show",
            "textbook",
        ):
            assert scene["times"][name]["samples"] > 0, name
        assert scene["memory"]["bytes_per_cached_token"] > 4
        assert scene["memory"]["bytes_per_choice"] > 0
    assert {(one["rows"], one["load"]) for one in document["passes"]} == {
        (rows, load.value) for rows in (64, 256) for load in Load
    }
    assert all(one["samples"] == 5 and one["p99_us"] >= one["p50_us"] > 0 for one in document["passes"])
    assert all(one["longest_ms"] > 0 for one in document["worst"])
    assert len(document["aims"]) == 3
