"""What an engine is asked and what it answers. Engines run inside the sandbox; this module is also imported by the service."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol

import msgspec


class TokenizerSource(msgspec.Struct, frozen=True):
    """Where the tokenizer is and what the model calls the end."""

    path: str
    """A Hugging Face ``tokenizer.json``."""
    eos_ids: tuple[int, ...]
    digest: str
    """SHA-256 (hex) of the tokenizer's files."""

    def read(self) -> str:
        """The text of tokenizer.json. Raises ``OSError``."""
        return Path(self.path).read_text(encoding="utf-8")


class MaskBudget(msgspec.Struct, frozen=True):
    """What masks may cost in CPU time, tried on random walks before a grammar is let in. A worker enforces the same while it decodes."""

    single_ms: float = 50.0
    """Any one mask: five decode steps of a small model."""
    mean_ms: float = 5.0
    """Mean over a walk, the first mask left out: half a decode step."""
    steps: int = 32
    """Tokens of a walk."""
    walks: int = 2


class Task(msgspec.Struct, frozen=True):
    """One grammar for one engine."""

    kind: str
    source: str
    """Canonical source (`normalise`)."""
    budget: MaskBudget = MaskBudget()


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """The engine takes it. ``source`` is what a worker builds its matcher from; times are CPU milliseconds."""

    source: str
    compile_ms: float
    first_mask_ms: float
    mask_ms: float = 0.0
    """Slowest of the tried masks."""
    memory_bytes: int = 0
    """How much the compiling process grew."""


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The engine does not take it. ``message`` is in the engine's own words."""

    message: str
    too_large: bool = False
    """Over a limit of the engine, or of the mask budget."""


class Died(msgspec.Struct, frozen=True, tag=True):
    """The compiling process was ended, or ended itself."""

    cause: str
    """``cpu`` | ``memory`` | ``wall`` (over that limit) | ``crash`` (a signal of its own)."""
    detail: str = ""
    starved: bool = False
    """With ``wall``: it mostly waited for a CPU, so that the machine, not the grammar, is to blame."""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The sandbox itself went away; nothing is known about the grammar."""

    detail: str = ""


Outcome = Compiled | Rejected | Died | Lost


class Engine(Protocol):
    """A loaded engine with its tokenizer."""

    def compile(self, task: Task) -> Compiled | Rejected:
        """Compile, try masks, and say what a worker needs. Blocks; may crash, which is why it runs in a sandbox."""
        ...


ENGINES = {
    "llguidance": "phloem_grammar.engine_llguidance:Llguidance",
    "xgrammar": "phloem_grammar.engine_xgrammar:Xgrammar",
}
"""Engine name to ``module:class``. The class is called with a `TokenizerSource`. Only a sandbox imports these modules."""


def load(path: str, tokenizer: TokenizerSource) -> Engine:
    """Import and build an engine from ``module:class``. Raises whatever the import or the constructor raises."""
    module, _, name = path.partition(":")
    engine: Engine = getattr(import_module(module), name)(tokenizer)
    return engine


def attempt(engine: Engine, task: Task) -> Outcome:
    """Compile, with whatever the engine raises as an outcome. Running out of memory is reported in several ways."""
    try:
        return engine.compile(task)
    except MemoryError:
        return Died("memory", "MemoryError")
    except Exception as error:
        if "bad_alloc" in str(error):
            return Died("memory", "bad_alloc")
        return Rejected(f"{type(error).__name__}: {error}")
