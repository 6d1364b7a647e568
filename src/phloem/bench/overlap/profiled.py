"""Run a service under `cProfile`: all its threads, in CPU time, from one SIGUSR1 to the next.

    python -m phloem.bench.overlap.profiled FILE MODULE ARGUMENT...

is ``python -m MODULE ARGUMENT...``, and at the second signal FILE is there: JSON of the CPU time that the process has used in between, and
of each function's calls, the calls it made, and own CPU time. The service does not know. (`python -m cProfile` sees one thread, takes
waiting for a core or a lock as time, and counts the start with the rest.) Watching costs more than most calls take: see
`throughput.unwatched`.
"""

from __future__ import annotations

import cProfile
import json
import os
import runpy
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Code = CodeType | str
"""As `cProfile` names a function; what is not Python is text."""
OURS = "overlap/profiled.py"


@dataclass(frozen=True, slots=True)
class Spent:
    """On one function, as the profiler measured it."""

    calls: int = 0
    made: int = 0
    """Calls of others, by this function."""
    own_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.calls + other.calls, self.made + other.made, self.own_s + other.own_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.calls - other.calls, self.made - other.made, self.own_s - other.own_s)


class Profiler:
    """A profile per thread, since each sees its own alone.

    Args:
        file: written at the second call of `mark`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._profiles: list[cProfile.Profile] = []  # as many as threads are started
        self._began: tuple[float, dict[Code, Spent]] | None = None

    def watch(self, *_: Any) -> None:
        """Profile the calling thread from here on. Of a form that `threading.setprofile` takes."""
        profile = cProfile.Profile(time.thread_time)
        self._profiles.append(profile)
        profile.enable()

    def mark(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Begin, in the thread that calls too; at the second call end. Of a form that `signal.signal` takes."""
        if self._began is None:
            spent = totals(self._profiles)
            self._began = time.process_time(), spent
            self.watch()
            return
        cpu_s, spent = time.process_time(), totals(self._profiles)
        self._profiles[-1].disable()
        began_s, before = self._began
        self._write(cpu_s - began_s, {code: one - before.get(code, Spent()) for code, one in spent.items()})

    def _write(self, cpu_s: float, spent: dict[Code, Spent]) -> None:
        functions = [
            (*key_of(code), one.calls, one.made, one.own_s)
            for code, one in spent.items()
            if not key_of(code)[0].startswith(OURS)
        ]
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"cpu_s": cpu_s, "functions": functions}), encoding="utf-8")
        os.replace(temporary, self._file)


def totals(profiles: list[cProfile.Profile]) -> dict[Code, Spent]:
    """By function, over all threads."""
    found: dict[Code, Spent] = {}
    for profile in profiles:
        for entry in profile.getstats():
            made = sum(one.callcount for one in entry.calls or ())
            found[entry.code] = found.get(entry.code, Spent()) + Spent(entry.callcount, made, entry.inlinetime)
    return found


def key_of(code: Code) -> tuple[str, str]:
    """Where a function is, from its package on, and what it is called; what is not Python has no place."""
    if isinstance(code, str):
        return "", code
    return f"{'/'.join(code.co_filename.split('/')[-2:])}:{code.co_firstlineno}", code.co_qualname


def main() -> None:
    file, module, *arguments = sys.argv[1:]
    profiler = Profiler(Path(file))
    signal.signal(signal.SIGUSR1, profiler.mark)
    threading.setprofile(profiler.watch)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
