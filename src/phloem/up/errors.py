"""What can be wrong before or while processes run; `str(error)` is one line for a person."""

from __future__ import annotations


class UpError(Exception):
    """Base of every error of `phloem up`."""


class ComposeError(UpError):
    """Raised when the compose file can't be read, or asks for something that a local process can't give."""


class PortInUse(UpError):
    """Raised when the port that users are to reach is taken."""

    def __init__(self, setting: str, port: int) -> None:
        super().__init__(f"{setting}: port {port} is in use; choose another with {setting}=PORT")
        self.setting = setting
        self.port = port


class BrokerMissing(UpError):
    """Raised when no nats-server can be found, or the one that was named can't be used."""
