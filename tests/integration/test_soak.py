"""The soak of `phloem chaos` for twenty seconds: too short for a slope, long enough for anything that is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_chaos import Done, run

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder: Path = tmp_path_factory.mktemp("soak")
    return run(folder, ["soak"], "--soak-minutes", "0.34")


def test_nothing_is_left_of_everything_mixed(done: Done) -> None:
    done.check("soak")


def test_all_were_served_and_a_worker_was_killed_meanwhile(done: Done) -> None:
    figures = done.row("soak")["figures"]
    assert figures["requests"] > 20
    assert figures["ended"] + figures["refused"] == figures["requests"]
    lines = done.row("soak")["lines"]
    assert "a worker killed 0 times" not in lines[0]
    assert sum("MB/min" in line for line in lines) > 6
