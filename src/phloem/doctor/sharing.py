"""How the worker's threads get along with everybody else's: niceness and waiting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .finding import Finding, ok, warning

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
OWN_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
WORKER = "phloem_gpu_worker"
OURS = "phloem_"
USUAL_SPINS = 300_000
"""Turns after which a waiting OpenMP thread sleeps, if nothing is set."""


def findings(environ: Mapping[str, str], file: Path) -> Iterator[Finding]:
    """Niceness of this process and of what `phloem up` starts, and how OpenMP's threads wait."""
    yield own_niceness(os.getpriority(os.PRIO_PROCESS, 0))
    yield of_compose(file, environ)
    yield waiting(environ)


def own_niceness(nice: int) -> Finding:
    if nice > 0:
        return warning(
            "niceness",
            f"this shell runs at nice {nice}, and so will all that it starts: everybody else goes first",
            "start Phloem without nice",
        )
    return ok("niceness", f"this shell runs at nice {nice}; phloem serve runs all services in one process at that")


def of_compose(file: Path, environ: Mapping[str, str]) -> Finding:
    """What `phloem up` would make of ``file``."""
    try:
        from phloem.up.compose import load
        from phloem.up.errors import UpError
    except ModuleNotFoundError:
        return ok("phloem up", "can't run here: see commands")
    if not file.is_file():
        return ok("phloem up", f"there is no {file} here; --file names one")
    try:
        services = load(file, environ=environ, profiles=["cpu"]).services.values()
    except UpError as trouble:
        return warning("phloem up", str(trouble), f"mend {file}")
    levels = {body.name: body.nice for body in services if _module(body.command).startswith(OURS)}
    workers = [body.name for body in services if _module(body.command) == WORKER]
    return around_the_worker(levels, workers, grouped=autogrouped())


def around_the_worker(levels: Mapping[str, int], workers: list[str], *, grouped: bool) -> Finding:
    """levels: niceness by service. grouped: whether the kernel gives each session the same share, whatever the niceness in it."""
    by_level: dict[int, list[str]] = {}
    for name, nice in levels.items():
        by_level.setdefault(nice, []).append(name)
    said = "; ".join(f"nice {nice}: {', '.join(names)}" for nice, names in sorted(by_level.items()))
    least = max((levels[name] for name in workers), default=0)
    beside = [name for name, nice in levels.items() if nice <= least and name not in workers]
    if workers and beside:
        return warning(
            "phloem up",
            f"{said}: {', '.join(beside)} can stall the worker's threads",
            "give them a higher `nice` in x-phloem than the worker's",
        )
    if grouped:
        return warning(
            "phloem up",
            f"{said}; but the kernel groups processes by session (sched_autogroup_enabled), and niceness counts within a session only",
            "sysctl kernel.sched_autogroup_enabled=0",
        )
    return ok("phloem up", said)


def waiting(environ: Mapping[str, str]) -> Finding:
    """How threads wait: the kernels' own, and those of torch's OpenMP, with which sampling works."""
    ours = "the kernels' threads are their own: they spin for 100 us and sleep then"
    policy, spins = (
        environ.get("OMP_WAIT_POLICY", "").strip().lower(),
        environ.get("GOMP_SPINCOUNT", "").strip().lower(),
    )
    if policy == "active" or _many(spins):
        named = "OMP_WAIT_POLICY=active" if policy == "active" else f"GOMP_SPINCOUNT={spins}"
        return warning(
            "waiting",
            f"{named}: torch's OpenMP threads, which sampling uses, never sleep and keep cores from the kernels; {ours}",
            "unset it, or set OMP_WAIT_POLICY=passive",
        )
    if policy == "passive" or spins == "0":
        return ok("waiting", f"torch's OpenMP threads, which sampling uses, sleep as soon as they wait; {ours}")
    return ok(
        "waiting",
        f"OMP_WAIT_POLICY is not set: torch's OpenMP threads, which sampling uses, spin for about a millisecond before they sleep; {ours}",
    )


def _many(spins: str) -> bool:
    """Whether GOMP_SPINCOUNT asks for far more turns than usual; it may end in k, M, G or T."""
    if spins.startswith("inf"):
        return True
    unit = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}.get(spins[-1:], 0)
    digits = spins[:-1] if unit else spins
    return digits.isdecimal() and int(digits) * (unit or 1) > USUAL_SPINS


def _module(command: tuple[str, ...]) -> str:
    """``python -m NAME ...`` -> NAME"""
    return command[2] if command[1:2] == ("-m",) and len(command) > 2 else ""


def autogrouped(read: Callable[[Path], str] = lambda path: path.read_text(encoding="ascii")) -> bool:
    """Whether autogroups are on, and count here: not in a control group that has a share of CPU time of its own.

    Args:
        read: raises ``OSError`` for a file that is not there.
    """
    try:
        on = read(AUTOGROUP).strip() == "1"
        own = next((line[3:].strip() for line in read(OWN_GROUP).splitlines() if line.startswith("0::")), "/")
    except (OSError, ValueError):
        return False
    return on and not any(_has_share(place, read) for place in (Path(own), *Path(own).parents))


def _has_share(group: Path, read: Callable[[Path], str]) -> bool:
    try:
        read(GROUPS / group.relative_to("/") / "cpu.weight")
    except (OSError, ValueError):
        return False
    return True
