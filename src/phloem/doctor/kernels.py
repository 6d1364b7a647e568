"""Who computes on the CPU: which kernels it can run, and whether they are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from phloem_gpu_worker.kernels.build import (
    LEVELS,
    Level,
    NoKernels,
    compiler,
    cpu_flags,
    find_library,
    pick_level,
    prebuilt_folder,
)
from phloem_model.cache import cache_root

from .finding import Finding, error, ok, warning

SLOW = "portable"
"""The level without vector instructions."""
GET_ONE = "install a C++ compiler (g++ or clang++)"


def findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """One: the kernels that a worker with these settings would use."""
    asked, quantize = environ.get("PHLOEM_KERNELS") or "auto", environ.get("PHLOEM_QUANTIZE") or "none"
    if asked == "torch":
        yield without(f"PHLOEM_KERNELS={asked}", quantize, "unset PHLOEM_KERNELS")
        return
    try:
        level = pick_level(asked)
    except NoKernels as trouble:
        yield error("kernels", str(trouble), "unset PHLOEM_KERNELS")
        return
    there = find_library(level, cache_root() / "kernels", prebuilt=prebuilt_folder())
    try:
        yield of_level(level, cpu_flags(), there, "" if there else compiler())
    except NoKernels as trouble:
        yield without(str(trouble), quantize, GET_ONE)


def of_level(level: Level, flags: frozenset[str], there: Path | None, command: str) -> Finding:
    """flags: the CPU's. there: the compiled library. command: the compiler, if it is not there."""
    also = [one.name for one in LEVELS if one != level and flags.issuperset(one.needs)]
    others = f" (this CPU also runs {', '.join(also)})" if also else ""
    state = f"compiled: {there}" if there else f"{command} will compile them at the first start, in half a minute"
    text = f"{level.name}{others}; {state}"
    if level.name == SLOW:
        return warning(
            "kernels", f"{text}; they use no vector instructions", "a CPU with AVX2 or AVX-512 is many times faster"
        )
    return ok("kernels", text)


def without(reason: str, quantize: str, advice: str) -> Finding:
    """No kernels: torch computes, but for quantised weights."""
    if quantize != "none":
        return error("kernels", f"{reason}, and PHLOEM_QUANTIZE={quantize} needs them", advice)
    return warning("kernels", f"{reason}: torch computes, several times slower, and weights can't be quantised", advice)
