"""Which kernels a CPU gets, and what happens where none can be had."""

from __future__ import annotations

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phloem_gpu_worker.kernels import build, prebuild
from phloem_gpu_worker.kernels.abi import load
from phloem_gpu_worker.kernels.build import LEVELS, NoKernels, library, pick_level
from phloem_gpu_worker.kernels.team import Kernels

from .compiled import kernels


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down its calls and "compiles" to what it was called with."""
    path = tmp_path / "c++"
    path.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(path))
    return tmp_path / "calls"


def test_a_cpu_gets_the_best_it_can_run() -> None:
    everything = {flag for level in LEVELS for flag in level.needs}
    assert pick_level(flags=everything).name == "avx512bf16"
    assert pick_level(flags=everything - {"avx512_bf16"}).name == "avx512"
    assert pick_level(flags=everything - {"avx512_bf16", "avx512vl"}).name == "avx2"
    assert pick_level(flags=[]).name == "portable"


def test_a_level_that_the_cpu_lacks_is_refused_by_what_is_missing() -> None:
    with pytest.raises(NoKernels, match="avx512_bf16"):
        pick_level("avx512bf16", flags=["avx2", "fma"])
    with pytest.raises(NoKernels, match=r"'sse9'.*avx512bf16, avx512, avx2, portable"):
        pick_level("sse9")


def test_each_kind_is_compiled_once(tmp_path: Path, fake_compiler: Path) -> None:
    level = pick_level("portable")
    made = library(level, tmp_path / "kernels")
    assert library(level, tmp_path / "kernels") == made
    assert len(fake_compiler.read_text().splitlines()) == 1
    assert library(level, tmp_path / "kernels", ["-g"]) != made
    assert len(fake_compiler.read_text().splitlines()) == 2
    assert sorted(path.suffix for path in (tmp_path / "kernels").iterdir()) == [".so", ".so"]


def test_several_that_compile_at_once_agree(tmp_path: Path, fake_compiler: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: library(pick_level("portable"), tmp_path / "kernels"), range(8)))
    assert {path.read_text() for path in made} == {"made\n"}
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_a_changed_source_is_compiled_anew(
    tmp_path: Path, fake_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "sources"
    copies.mkdir()
    for path in build.sources():
        shutil.copy(path, copies)
    before = library(pick_level("portable"), tmp_path / "kernels")
    monkeypatch.setattr(build, "SOURCES", copies)
    assert library(pick_level("portable"), tmp_path / "kernels") == before
    (copies / "vec.h").write_text((copies / "vec.h").read_text() + "\n")
    assert library(pick_level("portable"), tmp_path / "kernels") != before


def test_what_was_built_before_is_used_without_a_compiler(
    tmp_path: Path, fake_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = library(pick_level("portable"), tmp_path / "shipped")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert library(pick_level("portable"), tmp_path / "own", prebuilt=tmp_path / "shipped") == shipped
    with pytest.raises(NoKernels, match="no C\\+\\+ compiler \\(/nowhere/c\\+\\+\\)"):
        library(pick_level("portable"), tmp_path / "own")


def test_an_image_brings_every_level(tmp_path: Path, fake_compiler: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prebuild.main([str(tmp_path / "shipped")]) == 0
    made = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert made == [library(level, Path("/nowhere"), prebuilt=tmp_path / "shipped") for level in LEVELS]
    assert prebuild.main([]) == 2
    Path(os.environ["CXX"]).write_text("#!/bin/sh\nexit 1\n")
    assert prebuild.main([str(tmp_path / "other")]) == 1


def test_a_failed_compile_says_why_in_one_line(
    tmp_path: Path, fake_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(os.environ["CXX"]).write_text(
        "#!/bin/sh\necho 'In file a.h:' >&2\necho 'a.h:1: error: no such thing' >&2\nexit 1\n"
    )
    with pytest.raises(NoKernels, match=r"failed: a\.h:1: error: no such thing$"):
        library(pick_level("portable"), tmp_path / "kernels")
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_folder_that_cant_be_written_is_named(tmp_path: Path, fake_compiler: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(NoKernels, match="can't be compiled into"):
        library(pick_level("portable"), tmp_path / "kernels")


def test_what_is_no_library_or_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no library")
    with pytest.raises(NoKernels, match=r"x\.so can't be loaded"):
        load(tmp_path / "x.so")


def test_what_is_compiled_for_a_level_says_so() -> None:
    made = kernels("portable")
    assert made.level == "portable"
    assert isinstance(made, Kernels)
