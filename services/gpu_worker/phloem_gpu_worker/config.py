"""Settings of the worker, validated at start."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_bus.errors import ConfigError

from .cores import parse_cores
from .kernels.build import level_names

DTYPES = ("auto", "bfloat16", "float32")
DEVICES = ("auto", "cpu", "cuda")
KERNELS = ("auto", "torch", *level_names())
QUANTISATIONS = ("none", "int8", "int4", "stored")
"""How matrices are held: in the model's dtype, rounded to 8 or 4 bits, or as the file has them."""
STAND_IN = "stand-in:"
"""Prefix of a model that is none: ``stand-in:8`` takes 8 ms per step and draws hashes."""
STAND_INS = ("sleep", "burn")
"""What a stand-in does meanwhile; ``stand-in:8:burn`` keeps the cores as busy as a model on the CPU would."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """A device without a model."""

    step_s: float
    burns: bool


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What an operator may set; see ``--help`` for the flags of the same names."""

    model: str = "smollm2"
    """A name, path or hub id as `phloem_model.resolve` takes it, or ``stand-in:MS[:burn]``."""
    dtype: str = "auto"
    """Of weights and KV. auto = bfloat16 where the hardware multiplies it, else float32."""
    device: str = "auto"
    page_size: int = 16
    """Tokens per KV page, a power of two."""
    kv_tokens: int = 0
    """Tokens the KV pool holds; 0 = what ``kv_memory_gb`` hold."""
    kv_memory_gb: float = 0.0
    """GiB of the KV pool; 0 = half of what is free once the model is loaded, but no more than its default rows use."""
    max_rows: int = 64
    """Sequences that run at once."""
    max_step_tokens: int = 2048
    """Most tokens of one step; bounds the memory of a forward pass."""
    max_context: int = 0
    """Most tokens of a sequence; 0 = what the model's files say."""
    threads: int = 0
    """CPU threads of the model; 0 = one for each core that this process may use."""
    kernels: str = "auto"
    """Who computes on the CPU: one of `KERNELS`. auto = the best compiled kernels there can be, else torch."""
    quantize: str = "none"
    """How matrices are held: one of `QUANTISATIONS`."""
    cores: str = ""
    """Cores that the kernels' threads are bound to, one each, such as ``0-3,8``; empty = wherever the system puts them."""

    def __post_init__(self) -> None:
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--device", self.device, DEVICES)
        _one_of("--kernels", self.kernels, KERNELS)
        _one_of("--quantize", self.quantize, QUANTISATIONS)
        _check(
            self.quantize == "none" or self.dtype != "float32",
            "--quantize",
            f"{self.quantize} computes in bfloat16, not in --dtype float32",
        )
        _check(bool(self.model.strip()), "--model", "must not be empty")
        size = self.page_size
        _check(1 <= size <= 1024 and size & (size - 1) == 0, "--page-size", f"a power of two up to 1024, not {size}")
        _check(
            self.kv_tokens == 0 or self.kv_tokens >= 2 * size,
            "--kv-tokens",
            f"0, or at least two pages ({2 * size}), not {self.kv_tokens}",
        )
        _check(0 <= self.kv_memory_gb <= 4096, "--kv-memory-gb", f"between 0 and 4096, not {self.kv_memory_gb:g}")
        _check(1 <= self.max_rows <= 4096, "--max-rows", f"between 1 and 4096, not {self.max_rows}")
        _check(
            self.max_rows + size <= self.max_step_tokens <= 65536,
            "--max-step-tokens",
            f"between --max-rows plus one page ({self.max_rows + size}) and 65536, not {self.max_step_tokens}",
        )
        _check(
            self.max_context == 0 or self.max_context >= 16,
            "--max-context",
            f"0, or at least 16, not {self.max_context}",
        )
        _check(0 <= self.threads <= 1024, "--threads", f"between 0 and 1024, not {self.threads}")
        if self.cores:
            try:
                parse_cores(self.cores)
            except ValueError as error:
                raise ConfigError("--cores", str(error)) from None
        stand_in = self.stand_in
        if stand_in is not None:
            _check(0 <= stand_in.step_s <= 10, "--model", "stand-in steps take 0 to 10000 ms")
            _check(stand_in.step_s > 0 or not stand_in.burns, "--model", "a stand-in that burns needs more than 0 ms")

    @property
    def stand_in(self) -> StandIn | None:
        """The stand-in that the model is, if it is one. Raises `ConfigError` for one that is written wrongly."""
        if not self.model.startswith(STAND_IN):
            return None
        duration, colon, kind = self.model.removeprefix(STAND_IN).partition(":")
        good = not colon or kind in STAND_INS
        _check(good, "--model", f"behind stand-in:MS comes one of {', '.join(STAND_INS)}, not {kind!r}")
        try:
            return StandIn(float(duration) / 1e3, kind == "burn")
        except ValueError:
            raise ConfigError("--model", f"stand-in:MS needs a number of milliseconds, not {self.model!r}") from None


def _one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, flag, f"one of {', '.join(choices)}, not {value!r}")


def _check(good: bool, flag: str, message: str) -> None:
    if not good:
        raise ConfigError(flag, message)
