"""What torch sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .finding import Finding, error, ok, warning

NVIDIA = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class Seen:
    """``dtype``: what weights and KV are in by default; ``gpus``: names of CUDA devices; ``cuda``: what torch was built for, "" = the CPU."""

    version: str
    dtype: str
    gpus: tuple[str, ...]
    cuda: str


def findings() -> Iterator[Finding]:
    """Nothing where torch is not installed, which is said with the worker's packages."""
    try:
        seen = look()
    except ModuleNotFoundError:
        return
    except (ImportError, OSError) as trouble:
        yield error("torch", f"can't be loaded: {_first_line(trouble)}", "install torch anew")
        return
    yield torch_itself(seen)
    yield gpu(seen, NVIDIA.exists())


def look() -> Seen:
    """Imports torch, which takes a second or two."""
    import torch

    from phloem_gpu_worker.load import pick_device, pick_dtype

    names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    dtype = str(pick_dtype("auto", pick_device("auto"))).removeprefix("torch.")
    return Seen(str(torch.__version__), dtype, tuple(names), torch.version.cuda or "")


def torch_itself(seen: Seen) -> Finding:
    text = f"torch {seen.version}; weights and KV are in {seen.dtype} unless --dtype says otherwise"
    if seen.dtype == "float32":
        return warning(
            "torch",
            f"{text}, since this CPU does not multiply bfloat16",
            "expect half the speed; a CPU with avx512_bf16 or AMX is faster",
        )
    return ok("torch", text)


def gpu(seen: Seen, driver: bool) -> Finding:
    """driver: whether an NVIDIA driver is loaded."""
    if seen.gpus:
        there = ", ".join(seen.gpus)
        return ok("gpu", f"CUDA {seen.cuda}: {there}; torch computes there, for there are no kernels of our own for it")
    if driver:
        built = f"was built for CUDA {seen.cuda}" if seen.cuda else "was built for the CPU alone"
        return warning(
            "gpu", f"there is an NVIDIA driver, but torch sees no GPU; it {built}", "install a torch that fits"
        )
    return ok("gpu", "torch sees none: the CPU computes")


def _first_line(trouble: Exception) -> str:
    return (str(trouble).splitlines() or [type(trouble).__name__])[0]
