"""What a worker computes with and how large its pool is, chosen from its settings and from what the machine has."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phloem_bus.errors import ConfigError
from phloem_model.cache import cache_root

from .architecture import Architecture
from .config import WorkerConfig
from .cores import Cores, find_cores, parse_cores
from .kernels.build import NoKernels, library, pick_level, prebuilt_folder
from .kernels.team import Kernels
from .load import PoolSize
from .memory import SHARE, Free, free_memory
from .native import unsuited
from .outline import Outline

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads compute, where they are bound to (empty = nowhere), and why."""

    count: int
    cores: tuple[int, ...]
    reason: str


def pick_threads(config: WorkerConfig, found: Cores | None = None) -> Threads:
    """Raises `ConfigError` if cores are named that this process may not use."""
    found = found or find_cores()
    bound = parse_cores(config.cores) if config.cores else ()
    strange = sorted(set(bound) - set(found.usable))
    if strange:
        raise ConfigError("--cores", f"this process may not use core {strange[0]}")
    if config.threads:
        return Threads(config.threads, bound, "--threads")
    if bound:
        return Threads(len(bound), bound, "--cores")
    return Threads(found.threads, (), found.reason)


@dataclass(frozen=True, slots=True)
class Computing:
    """Compiled kernels, or None for torch; ``reason``: why torch."""

    kernels: Kernels | None
    reason: str = ""


def pick_kernels(
    config: WorkerConfig, arch: Architecture, dtype: torch.dtype, device: torch.device, threads: Threads
) -> Computing:
    """Kernels if this machine, the model and ``config`` allow them; ``auto`` falls back to torch.

    Raises:
        ConfigError: kernels were asked for by name, or are needed for quantised weights, and can't be had.
    """
    reason = _why_not(config, arch, dtype, device)
    if reason is None:
        try:
            path = library(pick_level(config.kernels), cache_root() / "kernels", prebuilt=prebuilt_folder())
            return Computing(Kernels(path, threads.count, cores=threads.cores))
        except NoKernels as error:
            reason = str(error)
    return without_kernels(config, reason)


def without_kernels(config: WorkerConfig, reason: str) -> Computing:
    """Torch, and why.

    Raises:
        ConfigError: as `pick_kernels`.
    """
    if config.quantize != "none":
        raise ConfigError("--quantize", f"{config.quantize} needs the compiled kernels: {reason}")
    if config.kernels not in ("auto", "torch"):
        raise ConfigError("--kernels", reason)
    return Computing(None, reason)


def _why_not(config: WorkerConfig, arch: Architecture, dtype: torch.dtype, device: torch.device) -> str | None:
    if config.kernels == "torch":
        return "--kernels torch"
    if device.type != "cpu":
        return f"they run on the CPU, not on {device.type}"
    return unsuited(arch, dtype)


def pick_pool(config: WorkerConfig, arch: Outline, dtype: torch.dtype, free: Free | None = None) -> PoolSize:
    """How large the KV pool is: what is asked for, else a share of the memory that is free once the weights are loaded.

    Raises:
        ConfigError: there is not that much memory, or not enough for two pages.
    """
    free = free or free_memory()
    asked = int(config.kv_memory_gb * _GIB)
    size = PoolSize(
        config.page_size, config.kv_tokens or None, asked or int((free.bytes if free else 2 * _GIB) * SHARE)
    )
    pages = size.pages(arch, dtype)
    needed = pages * size.page_size * arch.kv_bytes_per_token * dtype.itemsize // 2
    flag = "--kv-tokens" if config.kv_tokens else "--kv-memory-gb"
    if pages < 2:
        raise ConfigError(flag, f"{size.memory_bytes / _GIB:.2f} GiB don't hold two pages of this model")
    if free is not None and needed > free.bytes:
        raise ConfigError(
            flag, f"asks for {needed / _GIB:.2f} GiB of KV; {free.bytes / _GIB:.2f} GiB are {free.source}"
        )
    return size
