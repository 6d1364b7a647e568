"""What can go wrong in the worker, one class per situation."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of the worker's errors."""


class UnsupportedModel(WorkerError):
    """Raised when a model's files describe something this decoder does not compute; the message names the setting."""


class BadWeights(WorkerError):
    """Raised when a weight is missing or has another shape than the configuration says."""


class BadPlan(WorkerError):
    """Raised when a plan does not fit what the worker holds (an unknown slot, too few pages ...): the session can't go on."""


class GrammarError(WorkerError):
    """Raised when a matcher can't be built from a verdict, or refuses a token."""
