"""What a bench asks a server besides completions: its model, an empty cache, and how it counts tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import anyio
import msgspec

from .http1 import BadResponse, Client, ConnectFailed, Disconnected
from .openai_api import Api, perform
from .record import Record
from .words import Fit, fit, text
from .workload import Item

ASK_S = 30.0
"""Longest wait for such an answer."""
FLUSH_WAIT_MS = 10_000
"""How long a Phloem may wait until it is idle before it refuses to flush."""
PROBE_WORDS = (32, 160)
FLUSH_PATHS = (f"/flush_cache?timeout={FLUSH_WAIT_MS // 1000}", "/reset_prefix_cache")
"""Phloem and SGLang, then vLLM (which has it in its development mode only)."""


class ServerUnusable(RuntimeError):
    """Raised when the server can't be measured at all; says why."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def model_name(client: Client) -> str:
    """The first model the server lists.

    Raises:
        ServerUnusable: it can't be reached, or lists none.
    """
    status, body = await _ask(client, "GET", "/v1/models")
    if status != 200:
        raise ServerUnusable(f"/v1/models answers {status}; give the model's name with --model")
    try:
        return msgspec.json.decode(body, type=_Models).data[0].id
    except (msgspec.DecodeError, IndexError):
        raise ServerUnusable("/v1/models lists no model; give its name with --model") from None


async def flush_cache(client: Client) -> bool:
    """Empty the server's prefix cache; False when it has no way to, or refused.

    Raises:
        ServerUnusable: it can't be reached.
    """
    for path in FLUSH_PATHS:
        status, _ = await _ask(client, "POST", path)
        if status == 200:
            return True
    return False


async def probe(client: Client, api: Api, seed: int) -> Fit | None:
    """How the server counts words, from two short requests; None when it reports no usage.

    Raises:
        ServerUnusable: a probe failed.
    """
    rng = random.Random(f"{seed}/probe")
    counts = []
    for words in PROBE_WORDS:
        record = Record(0)
        await perform(
            client,
            replace(api, stream=False, timeout_s=ASK_S * 2),
            Item(text(rng, words), 1),
            record,
            anyio.current_time,
        )
        if not record.ok:
            raise ServerUnusable(f"a request of {words} words failed: {record.failure}: {record.detail}")
        if not record.counted:
            return None
        counts.append(record.input_tokens)
    try:
        return fit(PROBE_WORDS[0], counts[0], PROBE_WORDS[1], counts[1])
    except ValueError as error:
        raise ServerUnusable(str(error)) from error


async def _ask(client: Client, method: str, path: str) -> tuple[int, bytes]:
    try:
        with anyio.fail_after(ASK_S):
            async with client.request(method, path) as response:
                return response.status, await response.read()
    except (ConnectFailed, Disconnected, BadResponse) as error:
        raise ServerUnusable(str(error)) from error
    except TimeoutError:
        raise ServerUnusable(f"{path} did not answer within {ASK_S:g} s") from None
