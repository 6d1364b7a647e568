"""How the worker's threads get along with everybody else's: niceness and waiting."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from phloem_gpu_worker.openmp import POLICY, SPINS, TURNS

from .finding import Finding, ok, warning

WORKER = "phloem_gpu_worker"
EVERY_TOKEN = ("phloem_gateway", "phloem_scheduler", "phloem_tokenizer")
"""Modules of the services through whose hands every token goes."""
OURS = "phloem_"
USUAL_TURNS = 300_000
"""How often a waiting OpenMP thread looks before it sleeps, if nothing is set."""
FEW_TURNS = 30_000
"""A millisecond: what a step's end costs the next one's beginning at most."""


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
    hands = [body.name for body in services if _module(body.command) in EVERY_TOKEN]
    return around_the_worker(levels, workers, hands)


def around_the_worker(levels: Mapping[str, int], workers: list[str], hands: list[str]) -> Finding:
    """levels: niceness by service. hands: those through whose hands every token goes."""
    by_level: dict[int, list[str]] = {}
    for name, nice in levels.items():
        by_level.setdefault(nice, []).append(name)
    said = "; ".join(f"nice {nice}: {', '.join(names)}" for nice, names in sorted(by_level.items()))
    first = min((levels[name] for name in workers), default=math.inf)
    behind = [name for name in hands if levels[name] > first]
    if behind:
        return warning(
            "phloem up",
            f"{said}: {', '.join(behind)} would wait for the worker's steps, and clients with them",
            "give the worker a `nice` in x-phloem that is as high at least",
        )
    return ok("phloem up", said)


def waiting(environ: Mapping[str, str]) -> Finding:
    """How threads wait: the kernels' own, and those of torch's OpenMP, with which sampling works."""
    ours = "the kernels' threads are their own: they spin for 100 us and sleep then"
    policy, spins = (environ.get(name, "").strip().lower() for name in (POLICY, SPINS))
    if not policy and not spins:
        text = f"workers set {SPINS}={TURNS}, so that torch's OpenMP threads, which sampling uses, sleep soon; {ours}"
        return ok("waiting", text)
    named, turns = f"{SPINS}={spins}" if spins else f"{POLICY}={policy}", _turns(policy, spins)
    if turns > FEW_TURNS:
        long = "never sleep" if turns > USUAL_TURNS else "spin for some 10 ms before they sleep"
        return warning(
            "waiting",
            f"{named}: torch's OpenMP threads, which sampling uses, {long}, on cores that the next step's kernels wait for; {ours}",
            f"unset it: workers set {SPINS}={TURNS}, with which steps of a few rows take little more than half as long",
        )
    return ok("waiting", f"{named}: torch's OpenMP threads, which sampling uses, sleep soon; {ours}")


def _turns(policy: str, spins: str) -> float:
    """How often a waiting thread of libgomp looks before it sleeps. A number of ``spins`` beats ``policy``; it may end in k, M, G or T."""
    if spins.startswith("inf"):
        return math.inf
    unit = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}.get(spins[-1:], 0)
    digits = spins[:-1] if unit else spins
    if digits.isdecimal():
        return int(digits) * (unit or 1)
    return {"active": math.inf, "passive": 0}.get(policy, USUAL_TURNS)


def _module(command: tuple[str, ...]) -> str:
    """``python -m NAME ...`` -> NAME"""
    return command[2] if command[1:2] == ("-m",) and len(command) > 2 else ""
