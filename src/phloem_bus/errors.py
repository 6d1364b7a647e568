"""What can go wrong on the bus, one class per situation. NATS exceptions don't travel beyond the adapter."""

from __future__ import annotations


class BusError(Exception):
    """Base of all errors of the bus."""


class Disconnected(BusError):
    """Raised when the bus has no connection at the moment: nothing was sent, nothing will be sent later."""


class NoResponders(BusError):
    """Raised when nobody listens on the subject of a request."""


class TimedOut(BusError):
    """Raised when no reply came in time. The request may have been carried out."""


class PayloadTooLarge(BusError):
    """Raised before sending when a message (headers counted) exceeds ``max_payload``."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"message of {size} bytes exceeds the bus limit of {limit} bytes")
        self.size = size
        self.limit = limit


class NotAllowed(BusError):
    """Raised when the broker's permissions forbid this user a subscription."""


class NoPeer(BusError):
    """Raised when no ready instance of a role is present."""


class LinkClosed(BusError):
    """Raised when something is sent over a link that is gone."""


class HelloRefused(BusError):
    """Raised when the peer refuses a link; ``code`` and ``message`` say why (``mismatch``, ``fenced``, ``draining``)."""

    def __init__(self, code: str, message: str, term: int = 0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.term = term


class ConfigError(Exception):
    """Raised at start for a setting that can't be used; ``setting`` is the flag's name.

    Args:
        exit_code: of the process: 2 for a setting that is wrong, 1 where what it names is there and can't be used, such as a damaged file.
    """

    def __init__(self, setting: str, message: str, exit_code: int = 2) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting
        self.message = message
        self.exit_code = exit_code
