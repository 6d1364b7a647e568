"""Where the repository is, and the tools that stand beside the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the virtual environment's programs."""
    return Path(sys.executable).parent
