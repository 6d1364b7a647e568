"""How idle a device was and what the rest can carry: figures by hand, wrong options, and short runs with real processes."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.overlap import ceiling, client, command, plan, processes, profiled, run
from phloem.bench.overlap.aims import ceiling_aim, idle_aim
from phloem.bench.overlap.client import BY_LENGTH, Failed, Stream
from phloem.bench.overlap.figures import WARM_STEPS, Idle, Step, TooFewSteps, full_steps, idle, middle
from phloem.bench.overlap.plan import CASES, Case, cases
from phloem.bench.overlap.throughput import CLIENT, REST, Ceiling, Function, profile_of, unwatched
from phloem.up.compose import load
from phloem_gpu_worker.config import STAND_INS, WorkerConfig
from phloem_gpu_worker.stand_in import StandInRunner

PROFILES = ["--profile"] if sys.version_info < (3, 12) else []
ROOT = Path(__file__).parents[2]
IDLE = ["overlap", "--only", "idle", "--rows", "8", "--step-ms", "4", "--steps", "60"]
CEILING = ["overlap", "--only", "ceiling", "--streams", "8", "--stream-tokens", "400"]


def steps(count: int, idle_ms: float = 0.0, rows: int = 4) -> list[Step]:
    return [Step(n, n * (8.0 + idle_ms) / 1e3, rows, rows, 8.0, idle_ms) for n in range(1, count + 1)]


def waits(idle_ms: float) -> Idle:
    return idle(steps(50, idle_ms=idle_ms), 8.0)


def a_ceiling(busy_share: float = 1.0) -> Ceiling:
    cpu_s = {"gateway": 8.0, "worker": 10.0, CLIENT: 2.0}
    return Ceiling(64, 100_000.0, 10.0, 1.0, 200.0, cpu_s, dict.fromkeys(cpu_s, 1.0), 2, busy_share)


def test_only_full_steps_count_and_each_once() -> None:
    run = steps(WARM_STEPS + 12)
    prompt = Step(0, 0.0, 4, 1, 8.0, 50.0)
    tail = Step(99, 1.0, 3, 3, 8.0, 50.0)
    resent = Step(WARM_STEPS + 12, 9.0, 4, 4, 8.0, 0.0)
    found = full_steps([prompt, *run, tail, resent], rows=4)
    assert [step.number for step in found] == list(range(WARM_STEPS + 1, WARM_STEPS + 13))
    assert found[-1].arrived_s < 9.0


def test_idle_is_a_share_of_the_time_and_the_clock_agrees() -> None:
    found = idle(steps(100, idle_ms=2.0), step_ms=8.0)
    assert (found.idle_share, found.lost_share, found.period_ms) == pytest.approx((0.2, 0.2, 10.0))
    assert (found.late_steps, found.idle_p50_us, found.idle_max_ms) == pytest.approx((100, 2000, 2.0))
    assert idle(steps(100), step_ms=8.0).lost_share == pytest.approx(0.0)
    with pytest.raises(TooFewSteps, match="more --steps"):
        idle(steps(9), step_ms=8.0)


def test_medians_over_runs() -> None:
    runs = [waits(one) for one in (0.0, 2.0, 8.0)]
    assert middle(runs).idle_share == pytest.approx(0.2)
    assert middle(runs).idle_max_ms == 8.0
    assert middle(runs).steps == 150


def test_without_options_both_devices_run_at_all_sizes_within_what_the_stand_in_holds() -> None:
    found = cases((), (), (), None)
    assert [(case.device, case.rows, case.step_ms) for case in found] == [
        (device, *size) for device in ("sleep", "burn") for size in CASES
    ]
    for case in found:
        assert 2 <= case.steps * case.step_ms / 1e3 <= 5  # seconds: long enough to say something
    assert [(case.rows, case.step_ms) for case in cases(("burn",), (8, 16), (), 50)] == [(8, 8.0), (16, 8.0)]
    assert [(case.rows, case.step_ms) for case in cases(("burn",), (), (1.0, 3.0), 50)] == [(64, 1.0), (64, 3.0)]


def test_what_the_bench_says_of_others_is_true() -> None:
    assert command.DEVICES == plan.DEVICES == STAND_INS
    capacity = StandInRunner(0.0).capacity
    assert capacity.context_length == plan.STAND_IN_CONTEXT
    assert capacity.vocab_size == plan.STAND_IN_VOCABULARY
    assert capacity.pages * capacity.page_size == plan.STAND_IN_TOKENS
    for device, burns in (("sleep", False), ("burn", True)):
        stand_in = WorkerConfig(model=Case(device, 8, 2.5, 60).model).stand_in
        assert stand_in is not None
        assert (stand_in.step_s, stand_in.burns) == (0.0025, burns)
    services = load(ROOT / "compose.yaml", environ={}, profiles=["cpu"]).services
    assert services["gpu-worker"].nice == processes.WORKER_NICE
    assert services["nats"].environment["GOMAXPROCS"] == processes.BROKER["GOMAXPROCS"]
    assert {services[name].nice for name in ("nats", "gateway", "tokenizer", "scheduler")} == {0}


def test_aims_are_those_of_depth_two_and_of_the_named_sizes() -> None:
    def holds(rows: int, step_ms: float, depth: int, idle_ms: float) -> bool | None:
        aim = idle_aim(Case("burn", rows, step_ms, 60), depth, waits(idle_ms))
        return None if aim is None else aim.holds

    one_and_a_half_percent = 8 * 0.015
    assert holds(64, 8.0, 2, one_and_a_half_percent) is False
    assert holds(256, 8.0, 2, 0.01) is True
    assert holds(64, 2.0, 2, one_and_a_half_percent) is True
    assert holds(64, 2.0, 1, 4.0) is None
    assert holds(32, 8.0, 2, 4.0) is None


def test_the_ceiling_without_the_client_is_what_the_others_make_of_its_time() -> None:
    found = a_ceiling()
    assert found.rate == 10_000
    assert found.apart == pytest.approx(10_000 * 20 / 18)
    assert found.us_per_token == {"gateway": 80.0, "worker": 100.0, CLIENT: 20.0}
    assert found.shares == pytest.approx({"gateway": 8 / 18, "worker": 10 / 18})
    assert found.full
    assert not a_ceiling(busy_share=0.8).full
    assert not ceiling_aim(found).holds


def test_shares_of_functions_add_up_to_the_service_with_what_no_function_did() -> None:
    functions = [Function("a.py:1", "f", 10, 90, 3.0), Function("", "<len>", 90, 0, 1.0)]
    top = profile_of(5.0, 10.0, functions).top(3)
    assert [(one.function.name, one.watched) for one in top] == [("f", 0.6), ("<len>", 0.2), (REST, 0.2)]
    faster = profile_of(2.0, 10.0, functions)  # by the process's clock than by the threads'
    assert [one.function.name for one in faster.top(1)] == ["f"]
    assert faster.rest.own_s == 0


def test_what_watching_costs_is_taken_off_by_calls_until_the_whole_is_what_it_is_without() -> None:
    """A hundred calls of which each costs 10 ms to watch, on either side, hide that the other function is the dear one."""
    true = {"f": 0.5, "g": 2.0, "len": 0.1, REST: 0.3}
    calls = {"f": (1, 100), "g": (1, 0), "len": (100, 0), REST: (0, 2)}
    watched = {name: own_s + 0.01 * sum(calls[name]) for name, own_s in true.items()}
    functions = [Function("", name, *calls[name], watched[name]) for name in ("f", "g", "len")]
    seen = profile_of(sum(watched.values()), 10.0, functions)
    found = unwatched(seen, sum(true.values()))
    assert {one.name: one.net_s for one in (*found.functions, found.rest)} == pytest.approx(true)
    assert found.top(1)[0].function.name == "g"
    slow = unwatched(seen, 99.0)  # no faster than without: nothing to take off
    assert [one.net_s for one in slow.functions] == pytest.approx([watched[one.name] for one in functions])


def test_a_stream_counts_events_wherever_its_bytes_are_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    event = b'19\r\ndata: {"choices":[{"text":"x"}]}\n\n\r\n'
    end = b"19\r\ndata: {" + BY_LENGTH[0] + b"}\n\n\r\n18\r\ndata: [DONE]\n\n\r\n"
    whole = head + event * 5 + end
    for size in (1, 7, 40, len(whole)):
        stream = Stream(None)  # type: ignore[arg-type]
        pieces = [whole[begin : begin + size] for begin in range(len(head), len(whole), size)]
        for piece in (head, *pieces):
            stream.take(piece)
        assert stream.ended
        assert stream.events == 6
        assert stream.size == len(whole)
    with pytest.raises(Failed, match="503"):
        Stream(None).take(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")  # type: ignore[arg-type]
    with pytest.raises(Failed, match="length"):
        Stream(None).take(head + event + b"data: [DONE]\n\n")  # type: ignore[arg-type]


def test_the_profiler_counts_calls_and_cpu_time_between_its_marks(tmp_path: Path) -> None:
    def calls(count: int) -> None:
        nothing = ()
        for _ in range(count):
            len(nothing)

    def elsewhere() -> None:
        threading.setprofile(profiler.watch)
        thread = threading.Thread(target=calls, args=(3000,))
        thread.start()
        threading.setprofile(None)
        thread.join()

    profiler = profiled.Profiler(tmp_path / "profile")
    calls(50_000)
    before = time.process_time()
    profiler.mark()
    calls(20_000)
    time.sleep(0.2)
    if PROFILES:
        elsewhere()
    profiler.mark()
    used = time.process_time() - before
    document = json.loads((tmp_path / "profile").read_text())
    found = {name: tuple(figures) for _, name, *figures in document["functions"]}
    counted = 20_000 + 3000 * bool(PROFILES)
    assert next(one for name, one in found.items() if "len" in name)[0] == counted
    assert found[calls.__qualname__][:2] == (1 + bool(PROFILES), counted)
    assert sum(own_s for *_, own_s in found.values()) <= document["cpu_s"] <= used  # the sleep costs nothing
    assert not [name for name in found if "Profiler" in name]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--device", "gpu"], "--device must be one of sleep, burn"),
        (["--only", "all"], "--only must be one of idle, ceiling"),
        (["--steps", "8000"], "fewer --steps"),
        (["--rows", "256", "--steps", "2000"], "fewer --steps"),
        (["--rows", "0"], "--rows"),
        (["--step-ms", "0"], "--step-ms"),
        (["--step-ms", "nan"], "--step-ms"),
        (["--streams", "0"], "--streams"),
        (["--stream-tokens", "3000"], "fewer --stream-tokens"),
        (["--stream-tokens", "1"], "--stream-tokens"),
        (["--only", "idle", "--profile"], "--profile"),
        (["--output", "/nowhere/overlap.json"], "--output"),
        (["--plot", "/nowhere/overlap.png"], "--plot"),
    ],
)
def test_options_that_cannot_be_used_are_refused_at_once(options: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["overlap", *options])
    assert result.exit_code == 2
    assert result.output.startswith("phloem bench: ")
    assert named in result.output


def test_without_matplotlib_a_plot_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["overlap", "--plot", str(tmp_path / "overlap.png")])
    assert result.exit_code == 2
    assert result.output == "phloem bench: --plot needs matplotlib: install Phloem with the extra 'bench'\n"


def test_a_model_that_does_not_know_the_stand_ins_tokens_is_refused() -> None:
    result = CliRunner().invoke(app, [*CEILING, "--model", "tiny"])
    assert result.exit_code == 1
    assert "name another --model" in result.output


def measured(tmp_path: Path, *options: str) -> Any:
    """What a run writes, after it has drawn a picture."""
    output, picture = tmp_path / "overlap.json", tmp_path / "overlap.png"
    result = CliRunner().invoke(app, [*options, "--output", str(output), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    return json.loads(output.read_text())


@pytest.mark.integration
@pytest.mark.alone
def test_both_devices_at_both_depths_with_real_services_over_nats(tmp_path: Path) -> None:
    document = measured(tmp_path, *IDLE)
    assert [(turn["case"]["device"], turn["depth"]) for turn in document["turns"]] == [
        ("sleep", 2), ("sleep", 1), ("burn", 2), ("burn", 1)
    ]  # fmt: skip
    assert document["ceiling"] is None
    assert document["aims"] == []  # nobody has said what 8 rows should be
    for one in document["medians"]:
        figures = one["idle"]
        assert set(one["cores"]) == {"nats-server", "worker", "scheduler", "sink"}
        assert all(0 < used < 16 for used in one["cores"].values())
        assert figures["steps"] >= 40
        assert 0 <= figures["idle_share"] < 1
        if one["case"]["device"] == "sleep":
            assert figures["busy_p50_ms"] == pytest.approx(4)
            assert figures["period_ms"] >= 3.9  # the stand-in really takes its time
        else:
            assert figures["busy_p50_ms"] > 1  # it computes; a core may become twice as fast after its speed was taken


@pytest.mark.integration
@pytest.mark.alone
def test_the_ceiling_counts_all_tokens_and_says_who_spends_what(tmp_path: Path) -> None:
    document = measured(tmp_path, *CEILING, *PROFILES)["ceiling"]
    everybody = {"nats-server", "scheduler", "worker", "tokenizer", "gateway", CLIENT}
    assert set(document["us_per_token"]) == everybody
    assert all(us > 0 for us in document["us_per_token"].values())
    assert 0 < document["tokens"] <= 8 * 400
    assert document["tokens_per_s"] < document["tokens_per_s_client_apart"]
    assert document["tokens_per_event"] >= 0.9
    assert sum(document["shares"].values()) == pytest.approx(1)
    profiles = json.loads((tmp_path / "overlap.json").read_text())["profiles"]
    own = {"scheduler": "phloem_scheduler/", "tokenizer": "phloem_tokenizer/", "gateway": "phloem_gateway/"}
    assert set(profiles) == ({*own, "worker"} if PROFILES else set())
    for service, folder in {**own, "worker": "phloem_gpu_worker/"}.items() if PROFILES else ():
        shares = [one["share"] for one in profiles[service]["functions"]]
        assert all(0 <= share <= 1 for share in shares)
        assert 0.5 < sum(shares) <= 1.0001
        assert any(one["place"].startswith(folder) and one["calls"] for one in profiles[service]["functions"])


@pytest.mark.integration
@pytest.mark.alone
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nats://127.0.0.1:1"])
def test_no_broker_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CONNECT_S", 0.5)
    result = CliRunner().invoke(app, [*IDLE, "--nats-url", url])
    assert result.exit_code == 1
    assert "phloem bench: " in result.output


@pytest.mark.integration
@pytest.mark.alone
def test_a_service_that_ends_is_shown_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "DEVICE", "stand-in:melt")
    result = CliRunner().invoke(app, CEILING)
    assert result.exit_code == 1
    assert "worker ended with code 2" in result.output
    assert "stand-in:MS" in result.output


def test_a_client_with_nobody_to_talk_to_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["client", "127.0.0.1", "1", "smollm2", "1", "10"])
    with pytest.raises(SystemExit):
        client.main()
    assert json.loads(capsys.readouterr().out)["what"] == "failed"
