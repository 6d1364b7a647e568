"""How torch's OpenMP threads wait is settled before torch is loaded, and by whoever starts the worker if they say so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phloem_gpu_worker.openmp import sleep_soon

SHOW = "import os, sys; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"


def python(code: str, **environ: str) -> str:
    """What ``code`` prints in a process of its own."""
    bare = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**bare, **environ}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_what_a_person_sets_stays() -> None:
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        environ = dict(said)
        sleep_soon(environ)
        assert environ == said


@pytest.mark.parametrize(("environ", "turns"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_a_worker_settles_it(environ: dict[str, str], turns: str) -> None:
    assert python(f"import phloem_gpu_worker.__main__; {SHOW}", **environ) == f"True {turns}"


def test_the_command_line_loads_no_torch_and_changes_nothing_for_what_it_starts() -> None:
    assert python(f"import phloem.cli; {SHOW}") == "False None"
