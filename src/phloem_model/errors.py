"""What can be wrong with a model. Each error is one line that names the model or the file, fit to be shown to a person."""

import reprlib
from pathlib import Path
from typing import Any


def shown(value: Any) -> str:
    """A wrong value as an error shows it: on one line, and in part only, since it may be megabytes long."""
    return reprlib.repr(value).replace("\n", " ")


class ModelError(Exception):
    """Base of every error of this package; `str(error)` is one line."""

    exit_code = 1
    """Of a process that can't go on because of it."""


class ModelNotFound(ModelError):
    """Raised when a name is neither a known model, nor an existing path, nor a hub id that can be fetched."""

    exit_code = 2


class ModelUnavailable(ModelError):
    """Raised when a known model could not be fetched: no network, no pip, a wrong hash, a lock that another process holds too long."""


class ModelBroken(ModelError):
    """Raised when a model's file exists and cannot be what it should be: cut short, of another type."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class TokenizerUnsupported(ModelError):
    """Raised for a tokenizer that this package cannot convert or decode exactly; a wrong one is never produced."""
