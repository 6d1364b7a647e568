"""Cores: which there are, how many threads compute on them, and who else does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from phloem_bus.errors import ConfigError
from phloem_gpu_worker.cores import Cores, find_cores

from .finding import Finding, error, ok, warning

GOVERNOR = "/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_{what}"
DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose "powersave" only means that the hardware chooses the clock."""
BUSY_SHARE = 0.5
"""Load of others, per core, from which on a worker has to share."""


def findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Cores and threads, the container's share, load, clock."""
    cores = find_cores()
    yield threads(cores, environ)
    yield quota(cores)
    yield load(os.getloadavg()[0], os.cpu_count() or len(cores.usable))
    yield governor(cores)


def threads(cores: Cores, environ: Mapping[str, str]) -> Finding:
    """How many threads a worker with these settings would take."""
    try:
        count, bound, reason = _picked(cores, environ)
    except ConfigError as trouble:
        return error("cores", str(trouble), "change PHLOEM_THREADS or PHLOEM_CORES")
    where = f", bound to {','.join(map(str, bound))}" if bound else ""
    text = f"{cores.reason}; the worker computes with {count} thread{'' if count == 1 else 's'} ({reason}){where}"
    if count > len(cores.usable):
        return warning("cores", f"{text}: they will wait for each other", "unset PHLOEM_THREADS")
    if len(cores.whole) == 1:
        return warning("cores", f"{text}: all services share it with the model", "give it two cores or more")
    return ok("cores", text)


def _picked(cores: Cores, environ: Mapping[str, str]) -> tuple[int, tuple[int, ...], str]:
    """Count, cores and reason. Raises `ConfigError`."""
    named = environ.get("PHLOEM_THREADS") or "0"
    if not named.isdecimal():
        raise ConfigError("PHLOEM_THREADS", f"must be a whole number, not {named!r}")
    try:
        from phloem_gpu_worker.choices import pick_threads
        from phloem_gpu_worker.config import WorkerConfig
    except (
        ImportError,
        OSError,
    ):  # no torch, so that there won't be a worker; what it would take is known all the same
        return cores.threads, (), cores.reason
    picked = pick_threads(WorkerConfig(threads=int(named), cores=environ.get("PHLOEM_CORES", "")), cores)
    return picked.count, picked.cores, picked.reason


def quota(cores: Cores) -> Finding:
    """What the container may use of them."""
    if cores.quota is None:
        return ok("quota", "no limit of the container on CPU time")
    text = f"the container has {cores.quota:g} cores' worth of CPU time"
    if cores.quota < len(cores.whole):
        return warning(
            "quota",
            f"{text} on {len(cores.whole)} cores: who uses it up is stopped for the rest of each period",
            "give it whole cores (cpuset) instead of a share of all",
        )
    return ok("quota", text)


def load(average: float, online: int) -> Finding:
    """average: of the last minute, of the whole machine with its ``online`` cores."""
    text = f"load {average:.1f} on {online} cores in the last minute"
    if average > BUSY_SHARE * online:
        return warning(
            "load",
            f"{text}: others compute as well, and a thread of the worker that waits for its core holds up all of them",
            "stop them, or keep them off the worker's cores (PHLOEM_CORES, taskset)",
        )
    return ok("load", text)


def governor(cores: Cores, read: Callable[[Path], str] = lambda path: path.read_text(encoding="ascii")) -> Finding:
    """read: raises ``OSError`` for a file that is not there."""

    def of(what: str) -> set[str]:
        return {read(Path(GOVERNOR.format(core=core, what=what))).strip() for core in cores.usable}

    try:
        governors, drivers = of("governor"), of("driver")
    except (OSError, ValueError):
        return ok("clock", "nobody says how the clock is governed: a virtual machine, mostly")
    text = f"governor {', '.join(sorted(governors))} ({', '.join(sorted(drivers))})"
    slow = governors - {"performance", "schedutil", "ondemand", "conservative"}
    if slow and not (slow == {"powersave"} and drivers <= set(DYNAMIC_DRIVERS)):
        return warning("clock", f"{text}: the clock stays low", "cpupower frequency-set --governor performance")
    return ok("clock", text)
