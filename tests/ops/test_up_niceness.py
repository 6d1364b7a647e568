"""A nice service gives way to the others, which are sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phloem.up import launcher

AUTOGROUP = Path(launcher.AUTOGROUP)
SHOW = "import os; print(os.getpriority(os.PRIO_PROCESS, 0)); print(open('/proc/self/autogroup').read())"


def started(nice: int) -> list[subprocess.Popen[str]]:
    """Several at once, as a deployment starts them, each in a session of its own."""
    command = [
        sys.executable,
        "-I",
        "-S",
        str(launcher.__file__),
        str(os.getpid()),
        str(nice),
        sys.executable,
        "-c",
        SHOW,
    ]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) for _ in range(3)]


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no groups of sessions")
@pytest.mark.parametrize("nice", [0, 7])
def test_niceness_is_that_of_the_process_and_of_its_session(nice: int) -> None:
    here = os.getpriority(os.PRIO_PROCESS, 0)
    for process in started(nice):
        own, group, *_ = process.communicate(timeout=30)[0].splitlines()
        assert int(own) == min(19, here + nice)
        assert group.endswith(f"nice {min(19, here + nice) if nice else 0}")
