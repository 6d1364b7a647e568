"""What can keep `phloem chaos` from measuring; `str(error)` is for a person."""

from __future__ import annotations


class ChaosError(Exception):
    """Base of every error of `phloem chaos`."""


class NotReady(ChaosError):
    """Raised when the deployment is not ready in time, at the start or after a fault; shows the end of a log."""


class NoReference(ChaosError):
    """Raised when not even the undisturbed streams end well: there is nothing to compare with."""
