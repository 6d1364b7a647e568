"""`phloem doctor`: what it makes of machines, by hand, and of this one."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phloem.cli import app
from phloem.doctor import device, kernels, memory, model, network, packages, processor, sharing
from phloem.doctor.finding import Finding, Level, can_serve, error, ok, warning
from phloem.doctor.report import summary
from phloem_gpu_worker.cores import Cores
from phloem_gpu_worker.kernels.build import LEVELS, library, pick_level
from phloem_gpu_worker.memory import Free
from phloem_model.catalogue import CATALOGUE
from tests.ports import free_port

from .only_extra import write_site

LINE = re.compile(r"(ok|warning|error) +\S.*")
FOUR = Cores((0, 1, 2, 3), (0, 1, 2, 3), None)


def one(found: Finding, level: Level, *words: str) -> None:
    """What is not fine says what to do."""
    assert found.level is level, found
    assert all(word in found.text for word in words), found
    assert (found.advice == "") is (level is Level.OK), found


def test_this_machine_is_told_line_by_line_and_written_as_json(tmp_path: Path, root: Path) -> None:
    out = tmp_path / "doctor.json"
    result = CliRunner().invoke(app, ["doctor", "--file", str(root / "compose.yaml"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    *lines, last = result.output.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), result.output
    assert "can be served here" in last
    document = json.loads(out.read_text())
    assert document["can_serve"]
    assert [line.split()[0] for line in lines] == [found["level"] for found in document["findings"]]
    topics = {found["topic"] for found in document["findings"]}
    assert topics > {"python", "gpu-worker", "torch", "gpu", "cores", "quota", "load", "clock", "niceness", "phloem up"}
    assert topics > {"waiting", "kernels", "memory", "open files", "ports", "broker", "cache", "model"}


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("PHLOEM_CORES", "9999", "core 9999"),
        ("PHLOEM_CORES", "three", "--cores"),
        ("PHLOEM_THREADS", "many", "'many'"),
        ("PHLOEM_THREADS", "5000", "--threads"),
        ("PHLOEM_KERNELS", "sse9", "'sse9'"),
        ("PHLOEM_MODEL", "no such model", "'no such model'"),
        ("PHLOEM_HTTP_PORT", "http", "'http'"),
        ("PHLOEM_GRPC_PORT", "70000", "'70000'"),
        ("PHLOEM_MAX_LIVE", "0", "'0'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_error(setting: str, value: str, named: str) -> None:
    result = CliRunner().invoke(app, ["doctor"], env={setting: value})
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("error")]
    assert named in line
    assert " -> " in line


def test_nothing_is_written_where_there_is_no_folder() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "/nowhere/at/all.json"])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1


@pytest.mark.integration
def test_a_bare_installation_is_a_finding_and_no_crash(tmp_path: Path) -> None:
    write_site(tmp_path / "site", "scheduler")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-m", "phloem", "doctor"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    lines = done.stdout.splitlines()
    assert all(LINE.fullmatch(line) for line in lines[:-1])
    assert [line.split()[1] for line in lines if line.startswith("error")] == list(packages.EXTRAS)
    assert "no model can be served here" in lines[-1]
    assert any(line.startswith("ok") and " cores " in line for line in lines)


def test_what_a_package_is_imported_as_belongs_to_it(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    owners = packages_distributions()
    wanted = [f"{text}; extra == '{extra}'" for extra, texts in project.items() for text in texts]
    for extra in (*packages.EXTRAS, *packages.MORE):
        needs = packages.needed(wanted, extra)
        assert len(needs) == len([text for text in project[extra] if not text.startswith("phloem")])
        for name in needs:
            module = packages.MODULES.get(name, name.replace("-", "_")).partition(".")[0]
            assert name in {owner.lower().replace("_", "-") for owner in owners[module]}


def test_what_an_extra_needs() -> None:
    wanted = [
        "anyio>=4.14",
        "uvloop>=0.21; platform_python_implementation == 'CPython'",
        'torch>=2.8; extra == "gpu-worker"',
        "jsonschema_rs; extra == 'gpu-worker'",
        "phloem[gpu-worker]; extra == 'all'",
        "httpx[http2]==0.28 ; extra == 'all'",
    ]
    assert packages.needed(wanted, "gpu-worker") == {"torch": "2.8", "jsonschema-rs": ""}
    assert packages.needed(wanted, "all") == {"httpx": "0.28"}


def test_packages_that_are_missing_or_old() -> None:
    torch, numpy = packages.Package("torch", "2.9.1+cpu", "2.8"), packages.Package("numpy", "2.1", "2.0")
    one(packages.of_service("gpu-worker", [torch, numpy]), Level.OK, "torch 2.9.1+cpu", "numpy 2.1")
    old = packages.Package("torch", "2.10", "2.11.1")
    one(packages.of_service("gpu-worker", [old, numpy]), Level.WARNING, "torch 2.10", "2.11.1")
    gone = packages.Package("torch", None, "2.8")
    one(packages.of_service("gpu-worker", [gone, numpy]), Level.ERROR, "no torch")
    one(packages.of_commands([packages.Package("pyyaml", None)]), Level.WARNING, "pyyaml", "phloem up")
    assert packages.look("no-such-thing").version is None
    one(packages.python((3, 10, 9), "Linux"), Level.ERROR, "3.10.9")
    one(packages.python((3, 12, 0), "Darwin"), Level.WARNING, "Darwin")


def test_what_torch_sees() -> None:
    cpu = device.Seen("2.9.1", "bfloat16", (), "")
    one(device.torch_itself(cpu), Level.OK, "bfloat16")
    one(device.torch_itself(device.Seen("2.9.1", "float32", (), "")), Level.WARNING, "float32")
    one(device.gpu(cpu, driver=False), Level.OK, "CPU")
    one(device.gpu(cpu, driver=True), Level.WARNING, "built for the CPU")
    one(device.gpu(device.Seen("2.9.1", "bfloat16", ("H200",), "12.8"), driver=True), Level.OK, "H200", "12.8")


def test_cores_and_threads() -> None:
    one(processor.threads(FOUR, {}), Level.OK, "4 cores", "4 threads")
    one(processor.threads(FOUR, {"PHLOEM_THREADS": "2"}), Level.OK, "2 threads", "--threads")
    one(processor.threads(FOUR, {"PHLOEM_CORES": "1,3"}), Level.OK, "2 threads", "bound to 1,3")
    one(processor.threads(FOUR, {"PHLOEM_THREADS": "8"}), Level.WARNING, "wait for each other")
    one(processor.threads(Cores((0, 1), (0,), None), {}), Level.WARNING, "1 thread ")
    one(processor.quota(FOUR), Level.OK)
    one(processor.quota(Cores((0, 1, 2, 3), (0, 1, 2, 3), 2.5)), Level.WARNING, "2.5")
    one(processor.quota(Cores((0, 1, 2, 3), (0, 1, 2, 3), 4.0)), Level.OK, "4")
    one(processor.load(0.4, 4), Level.OK)
    one(processor.load(2.6, 4), Level.WARNING, "2.6")


def governed(**files: str) -> Callable[[Path], str]:
    """Files by the end of their name; others are not there."""

    def read(path: Path) -> str:
        for name, text in files.items():
            if path.name == f"scaling_{name}":
                return f"{text}\n"
        raise FileNotFoundError(path)

    return read


def test_the_clock() -> None:
    one(processor.governor(FOUR, governed()), Level.OK, "virtual machine")
    one(processor.governor(FOUR, governed(governor="performance", driver="acpi-cpufreq")), Level.OK, "performance")
    one(processor.governor(FOUR, governed(governor="powersave", driver="acpi-cpufreq")), Level.WARNING, "stays low")
    one(processor.governor(FOUR, governed(governor="powersave", driver="intel_pstate")), Level.OK, "powersave")


@pytest.mark.parametrize(
    ("environ", "level", "said"),
    [
        ({}, Level.OK, "workers set GOMP_SPINCOUNT"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, Level.OK, "sleep soon"),
        ({"OMP_WAIT_POLICY": "active"}, Level.WARNING, "never sleep"),
        ({"GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "active"}, Level.OK, "sleep soon"),
        ({"GOMP_SPINCOUNT": "10k"}, Level.OK, "sleep soon"),
        ({"GOMP_SPINCOUNT": "2M", "OMP_WAIT_POLICY": "passive"}, Level.WARNING, "never sleep"),
        ({"GOMP_SPINCOUNT": "INFINITY"}, Level.WARNING, "never sleep"),
        ({"GOMP_SPINCOUNT": "300000"}, Level.WARNING, "spin for some 10 ms"),
    ],
)
def test_how_openmp_waits(environ: Mapping[str, str], level: Level, said: str) -> None:
    one(sharing.waiting(environ), level, said)


def test_niceness_around_the_worker() -> None:
    one(sharing.own_niceness(0), Level.OK)
    one(sharing.own_niceness(5), Level.WARNING, "nice 5")
    usual = {"gateway": 0, "scheduler": 0, "gpu-worker": 5, "grammar": 10}
    hands = ["gateway", "scheduler"]
    one(sharing.around_the_worker(usual, ["gpu-worker"], hands), Level.OK, "nice 5: gpu-worker; nice 10: grammar")
    one(sharing.around_the_worker({**usual, "gateway": 5}, ["gpu-worker"], hands), Level.OK)
    one(
        sharing.around_the_worker({**usual, "gateway": 6}, ["gpu-worker"], hands),
        Level.WARNING,
        "gateway would wait",
    )
    one(sharing.around_the_worker({"gateway": 6}, [], ["gateway"]), Level.OK)


def test_niceness_is_read_from_the_compose_file(root: Path, tmp_path: Path) -> None:
    found = sharing.of_compose(root / "compose.yaml", {})
    assert "nice 0: gateway, tokenizer, scheduler; nice 5: gpu-worker; nice 10: grammar" in found.text
    one(sharing.of_compose(tmp_path / "none.yaml", {}), Level.OK, "none.yaml")
    (tmp_path / "bad.yaml").write_text("services: [")
    one(sharing.of_compose(tmp_path / "bad.yaml", {}), Level.WARNING, "bad.yaml")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PHLOEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PHLOEM_KERNELS_DIR", raising=False)
    return tmp_path / "cache"


def test_kernels_are_looked_for_but_never_compiled(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    (found,) = kernels.findings({})
    assert f"{compiler} will compile them" in found.text
    assert not bare.exists()
    made = library(pick_level(), bare / "kernels")
    (found,) = kernels.findings({})
    assert f"compiled: {made}" in found.text
    monkeypatch.setenv("PHLOEM_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("PHLOEM_KERNELS_DIR", str(made.parent))
    (found,) = kernels.findings({})
    assert f"compiled: {made}" in found.text


def test_without_a_compiler_torch_serves_but_not_quantised_weights(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/compiler")
    (found,) = kernels.findings({})
    one(found, Level.WARNING, "torch computes")
    (found,) = kernels.findings({"PHLOEM_QUANTIZE": "int8"})
    one(found, Level.ERROR, "int8")
    (found,) = kernels.findings({"PHLOEM_KERNELS": "torch", "PHLOEM_QUANTIZE": "int4"})
    one(found, Level.ERROR, "int4")


def test_the_kernels_of_a_cpu() -> None:
    best, *_, portable = LEVELS
    everything = frozenset(flag for level in LEVELS for flag in level.needs)
    one(
        kernels.of_level(best, everything, Path("made.so"), ""), Level.OK, "also runs avx512, avx2, portable", "made.so"
    )
    one(kernels.of_level(portable, frozenset(), None, "g++"), Level.WARNING, "no vector instructions")


def test_memory() -> None:
    one(memory.free(None), Level.OK, "--kv-memory-gb")
    one(memory.free(Free(8 << 30, "available on this machine")), Level.OK, "8.0 GiB", "50%")
    one(memory.free(Free(1 << 30, "left to this container")), Level.WARNING, "left to this container")
    one(memory.free(Free(1 << 28, "available on this machine")), Level.ERROR)
    one(memory.large_pages(lambda path: "always [madvise] never\n"), Level.OK, "madvise")
    one(memory.large_pages(lambda path: "always madvise [never]\n"), Level.WARNING)


def test_open_files() -> None:
    one(network.open_files(1024, -1, "4096"), Level.WARNING, "1024", "4096")
    assert "ulimit -n 4352" in network.open_files(1024, 8192, "4096").advice
    assert "2048" in network.open_files(1024, 2048, "4096").advice
    one(network.open_files(65_536, 65_536, "4096"), Level.OK)
    one(network.open_files(-1, -1, "4096"), Level.OK)


def test_a_port_that_is_taken_and_one_that_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = network.port("PHLOEM_GRPC_PORT", str(listener.getsockname()[1]))
    one(taken, Level.WARNING, "is taken")
    assert "--grpc-port" in taken.advice
    one(network.port("PHLOEM_HTTP_PORT", str(free_port())), Level.OK, "is free")
    one(network.port("PHLOEM_GRPC_PORT", "-1"), Level.OK, "off")
    one(network.broker_port(False), Level.OK, "--nats-url")


def test_the_broker() -> None:
    one(network.broker(None), Level.WARNING, "phloem serve needs none")
    one(network.broker(("/bin/nats-server", "")), Level.WARNING)
    found = network.find_broker()
    assert found is not None
    assert re.fullmatch(r"\d+\.\d+\.\S+", found[1])
    one(network.broker(found), Level.OK, found[1])


def test_the_model_and_its_cache(bare: Path, tmp_path: Path) -> None:
    one(model.model("smollm2"), Level.WARNING, "not here yet")
    assert model.model("smollm2").advice == "phloem pull smollm2"
    entry = CATALOGUE["smollm2"]
    path = bare / "models" / "smollm2" / entry.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(entry.member_bytes)
    one(model.model("smollm2"), Level.OK, str(path))
    one(model.model("tiny"), Level.OK)
    one(model.model(str(tmp_path)), Level.OK)
    one(model.model("owner/name"), Level.WARNING, "hub")
    one(model.cache(bare, writable=True, free=50 << 30), Level.OK, "50.0 GiB")
    one(model.cache(bare, writable=True, free=1 << 20), Level.WARNING)
    one(model.cache(bare, writable=False, free=50 << 30), Level.WARNING, "can't be written")


def test_the_last_line_says_whether_serving_is_possible() -> None:
    fine, slow, bad = ok("a", "b"), warning("a", "b", "c"), error("a", "b", "c")
    assert can_serve([fine, slow])
    assert summary([fine, slow]) == "1 warning, 0 errors: a model can be served here"
    assert not can_serve([fine, bad])
    assert summary([slow, slow, bad]) == "2 warnings, 1 error: no model can be served here as things are"
