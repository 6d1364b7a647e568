"""The kernels' own tests over kernels compiled with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phloem_gpu_worker.kernels.build import NoKernels, compiler

from .compiled import LEVEL_NAMES

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
TESTS = (
    "test_worker_kernels_multiply.py",
    "test_worker_kernels_attention.py",
    "test_worker_kernels_sampling.py",
    "test_worker_models.py",
)
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g1 -O1"


def runtimes() -> str:
    """The sanitizers' libraries, which must be there before anything else is loaded."""
    try:
        command = compiler()
    except NoKernels as error:
        pytest.skip(str(error))
    found = []
    for name in ("libasan.so", "libubsan.so"):
        path = subprocess.run(
            [command, f"-print-file-name={name}"], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"{command} has no {name}")
        found.append(path)
    return " ".join(found)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_kernels_touch_only_what_is_theirs(level: str) -> None:
    """Those tests that run at a level of their own: products, ragged attention, draws, whole models."""
    environment = os.environ | {
        "LD_PRELOAD": runtimes(),
        # Python never frees what lives as long as it does; its own allocator would hide what is done to small pieces.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PHLOEM_TEST_KERNEL_FLAGS": FLAGS,
    }
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", level, *(str(HERE / test) for test in TESTS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout[-3000:], result.stderr[-3000:])
