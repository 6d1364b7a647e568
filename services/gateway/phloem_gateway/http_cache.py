"""``/radix`` and ``/pins``: seeing the prefix cache, and keeping parts of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import anyio

from phloem_proto.messages import PinInfo

from . import radix_view
from .checks import invalid
from .exchange import Exchange
from .gateway import Gateway
from .parse_pins import parse_pin, parse_renewal, pin_id
from .serving import read_body

MAX_QUERY_FIELDS = 16
"""Parameters of one URL, above all that any path here takes."""


class Cache:
    """Handlers of the cache's surface.

    Args:
        now: Unix time in seconds, for ``expires_at``.
    """

    def __init__(self, gateway: Gateway, now: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._now = now

    async def radix(self, exchange: Exchange) -> None:
        """``GET /radix?max_nodes=200&edge_ids=16``."""
        gateway = self._gateway
        wanted = radix_view.wish_from_query(query(exchange))
        deadline = anyio.current_time() + gateway.config.request_timeout_s
        seen = await radix_view.look(gateway.backends, gateway.texts, wanted, gateway.config.radix_view, deadline)
        await exchange.json(radix_view.to_json(seen))

    async def pins(self, exchange: Exchange) -> None:
        """``POST /pins``, ``GET /pins``."""
        if exchange.scope["method"] == "POST":
            await self._create(exchange)
            return
        found = await self._gateway.pins.list(exchange.owner)
        await exchange.json({"object": "list", "data": [self._shown(info) for info in found]})

    async def _create(self, exchange: Exchange) -> None:
        wish = parse_pin(await read_body(exchange, self._gateway.config), self._gateway.facts)

        async def work() -> None:
            made = await self._gateway.pins.pin(exchange.owner, wish, exchange.request_id)
            counts = {"prompt_tokens": made.prompt_tokens, "cached_tokens": made.cached_tokens}
            await exchange.json(self._shown(made.info) | counts)

        await exchange.while_connected(work)

    async def pin(self, exchange: Exchange) -> None:
        """``POST /pins/{id}``, ``DELETE /pins/{id}``."""
        ident = pin_id(exchange.scope["path_params"]["id"])
        if exchange.scope["method"] == "DELETE":
            ended = await self._gateway.pins.end(exchange.owner, ident)
            await exchange.json({"id": ended.pin, "object": "pin", "tokens": ended.tokens, "deleted": True})
            return
        ttl_ms = parse_renewal(await read_body(exchange, self._gateway.config))
        await exchange.json(self._shown(await self._gateway.pins.renew(exchange.owner, ident, ttl_ms)))

    def _shown(self, info: PinInfo) -> dict[str, Any]:
        left_s = info.ttl_ms / 1000
        return {
            "id": info.pin,
            "object": "pin",
            "tokens": info.tokens,
            "ttl_s": left_s,
            "expires_at": math.floor(self._now() + left_s),
            "worker": info.worker,
        }


def query(exchange: Exchange) -> dict[str, str]:
    """The URL's parameters; of one that occurs twice, the last. Raises `ApiError`."""
    text = exchange.scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
    except ValueError:
        raise invalid("query", f"at most {MAX_QUERY_FIELDS} parameters") from None
