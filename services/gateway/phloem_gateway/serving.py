"""What HTTP handlers share."""

from __future__ import annotations

from .config import GatewayConfig
from .exchange import Exchange


class SlowClient(Exception):
    """Raised when a client left too much unread, or did not take its last bytes in time, and was cut."""


async def read_body(exchange: Exchange, config: GatewayConfig) -> bytes:
    """The request's JSON body within the configured bounds. Raises what `Exchange.body` raises."""
    return await exchange.body(config.max_body_bytes, config.body_timeout_s)
