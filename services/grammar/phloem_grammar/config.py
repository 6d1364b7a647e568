"""Settings of the grammar service, validated at start."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_bus.errors import ConfigError

PRIORITIES = ("idle", "nice", "normal")


@dataclass(frozen=True)
class GrammarConfig:
    """What an operator may set. Times in seconds, sizes in megabytes (2**20 bytes)."""

    model: str = "smollm2"
    """Whose tokenizer masks are tried with: a name, path or hub id, as `phloem_model.resolve` takes it."""
    compiles: int = 2
    """Compiles at once, each in a process of its own."""
    compiles_waiting: int = 256
    """Callers who may wait; beyond: ``busy``."""
    compile_cpu_seconds: float = 2.0
    """CPU time of one compile and its tried masks; beyond it is killed."""
    compile_memory_mb: int = 512
    """What one compile may add to its process's memory; beyond it is killed."""
    compile_wall_seconds: float = 30.0
    """Clock time of one compile; long, since at low priority it may wait for a CPU."""
    verdict_cache_mb: int = 64
    """Text of remembered verdicts."""
    compile_priority: str = "nice"
    """Of compiling processes: ``idle`` (only when a CPU has nothing else to do, so never on one that is always busy), ``nice`` or ``normal``."""
    sandbox: bool = True
    """False: compile in this process, without protection (tests, debugging)."""

    def __post_init__(self) -> None:
        for name in (
            "compiles",
            "compiles_waiting",
            "compile_cpu_seconds",
            "compile_memory_mb",
            "compile_wall_seconds",
            "verdict_cache_mb",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(_flag(name), "must be more than 0")
        if self.compile_priority not in PRIORITIES:
            raise ConfigError(
                "--compile-priority", f"must be one of {', '.join(PRIORITIES)}, not {self.compile_priority!r}"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
