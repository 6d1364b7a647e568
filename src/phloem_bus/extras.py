"""What is not installed is said in one line: each service needs an extra of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def advice(error: ModuleNotFoundError, extra: str) -> str:
    """What to do about a missing package."""
    return f"needs {error.name}: install Phloem with the extra '{extra}'"


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports that need the extra ``name``: where it is missing, one line on standard error and exit code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("phloem"):
            raise  # a fault of ours, not of the installation
        print(f"error: {advice(error, name)}", file=sys.stderr)
        raise SystemExit(2) from None
