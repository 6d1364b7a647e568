"""Compile the kernels for this CPU, once: the result is kept by what it was made of."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import WorkerError

_log = logging.getLogger("phloem.worker")

SOURCES = Path(__file__).parent
PREBUILT = "PHLOEM_KERNELS_DIR"
"""Environment variable: a folder of compiled kernels that came with an image."""
COMPILERS = ("c++", "g++", "clang++")
COMPILE_S = 300.0
"""A compile takes some 20 s; one that takes this long has gone wrong."""
BASE_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-ffp-contract=off", "-Wno-psabi")
"""No contraction: whether a product and a sum are fused must not depend on how a loop was inlined."""


class NoKernels(WorkerError):
    """Raised when the kernels can't be had here: no compiler, a failed compile, another machine's library."""


@dataclass(frozen=True, slots=True)
class Level:
    """A form of the kernels. ``needs``: flags of the CPU, as Linux names them."""

    name: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]


_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c", "avx2")
LEVELS = (
    Level("avx512bf16", (*_AVX512, "avx512_bf16"), ("-march=x86-64-v4", "-mavx512bf16")),
    Level("avx512", _AVX512, ("-march=x86-64-v4",)),
    Level("avx2", ("avx2", "fma", "f16c", "bmi2"), ("-march=x86-64-v3",)),
    Level("portable", (), ()),
)
"""Best first."""


def level_names() -> list[str]:
    """Names of all levels, best first."""
    return [level.name for level in LEVELS]


def cpu_flags() -> frozenset[str]:
    """What this CPU can do, as ``/proc/cpuinfo`` says; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def pick_level(name: str = "auto", flags: Iterable[str] | None = None) -> Level:
    """The level ``name``, or the best one that a CPU with ``flags`` (default: this one) can run.

    Raises:
        NoKernels: there is no such level, or the CPU lacks something of it.
    """
    have = cpu_flags() if flags is None else frozenset(flags)
    if name == "auto":
        return next(level for level in LEVELS if have.issuperset(level.needs))
    for level in LEVELS:
        if level.name == name:
            missing = sorted(set(level.needs) - have)
            if missing:
                raise NoKernels(f"this CPU can't run {name} kernels: it lacks {', '.join(missing)}")
            return level
    raise NoKernels(f"there are no {name!r} kernels; there are {', '.join(level_names())}")


def library(level: Level, folder: Path, extra_flags: Sequence[str] = (), prebuilt: Path | None = None) -> Path:
    """The compiled kernels of ``level``: from ``prebuilt`` or ``folder`` if they are there, else compiled into ``folder``.

    Args:
        folder: made if need be; several processes may use it at once.
        extra_flags: for the compiler, sanitizers say.
        prebuilt: a folder that is only read.

    Raises:
        NoKernels: there is no compiler, or it failed.
    """
    found = find_library(level, folder, extra_flags, prebuilt)
    if found is not None:
        return found
    name = _file_name(level, extra_flags)
    _compile(level, folder, name, extra_flags)
    return folder / name


def find_library(
    level: Level, folder: Path, extra_flags: Sequence[str] = (), prebuilt: Path | None = None
) -> Path | None:
    """As `library`, but None where that would compile."""
    name = _file_name(level, extra_flags)
    places = [place for place in (prebuilt, folder) if place is not None]
    return next((place / name for place in places if (place / name).exists()), None)


def prebuilt_folder() -> Path | None:
    """The folder of compiled kernels that came with an image, as `PREBUILT` names it."""
    folder = os.environ.get(PREBUILT)
    return Path(folder) if folder else None


def _file_name(level: Level, extra_flags: Sequence[str]) -> str:
    return f"{level.name}-{_key(level, extra_flags)}.so"


def _key(level: Level, extra_flags: Sequence[str]) -> str:
    """Sources, flags and machine; not the compiler, so that what an image was shipped with is used where there is none."""
    digest = hashlib.sha256()
    for part in (*BASE_FLAGS, *level.flags, *extra_flags, platform.machine()):
        digest.update(part.encode() + b"\0")
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def sources() -> list[Path]:
    """All files that are compiled, sorted."""
    return sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])


def compiler() -> str:
    """The C++ compiler: ``CXX`` if it is set, else the first of `COMPILERS`. Raises `NoKernels`."""
    wanted = os.environ.get("CXX")
    found = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise NoKernels(f"there is no C++ compiler ({wanted or ', '.join(COMPILERS)})")
    return found


def _compile(level: Level, folder: Path, name: str, extra_flags: Sequence[str]) -> None:
    command = compiler()
    files = [str(path) for path in sources() if path.suffix == ".cpp"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{level.name}-") as scratch:
            made = Path(scratch) / name
            _log.info("compiling the %s kernels with %s; this takes half a minute, once", level.name, command)
            began = time.perf_counter()
            result = subprocess.run(
                [command, *BASE_FLAGS, *level.flags, *extra_flags, *files, "-o", str(made)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_S,
                check=False,
            )
            if result.returncode:
                raise NoKernels(f"{command} failed: {_first_error(result.stderr)}")
            made.replace(folder / name)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoKernels(f"the kernels can't be compiled into {folder}: {error}") from None
    _log.info("compiled the %s kernels in %.0f s", level.name, time.perf_counter() - began)


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return (lines or text.strip().splitlines() or ["it said nothing"])[0][:300]
