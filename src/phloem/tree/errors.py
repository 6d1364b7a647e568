"""What can go wrong, one class per situation. Each is one line for the person."""

from __future__ import annotations


class Unusable(Exception):
    """Raised for an option that can't be used."""


class NotSeen(Exception):
    """Raised when a server did not show its cache.

    Args:
        final: asking again would give the same answer.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
