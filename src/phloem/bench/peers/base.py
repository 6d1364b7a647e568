"""What a peer is: what to install, what model form it reads, and how it is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from phloem_model import ModelFiles


class PeerFailed(RuntimeError):
    """Raised when a peer can't be installed or started; says why in one line."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start an installed peer."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    """Added to our own environment."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One server of others."""

    name: str
    about: str
    """What it is, its licence, and how it is run here."""
    requirement: str
    download: str
    """What is fetched and about how much."""
    port: int
    """Its port unless another is asked for."""
    ready_path: str
    """Answers 200 once it serves."""
    start: Callable[[Path, ModelFiles, int, tuple[str, ...]], Start]
    """From the environment's folder, the model, the port and more flags. May write the model in the peer's own form first.

    Raises:
        PeerFailed: it can't serve this model.
    """
    install_flags: tuple[str, ...] = ()
    torch: str = ""
    """A requirement to install first from torch's index of CPU builds, where that answers: elsewhere torch brings CUDA along."""
    finish: Callable[[Path], None] = lambda home: None
    """What is left to do in a freshly installed environment."""
