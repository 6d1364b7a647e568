"""The prefix cache as clients are shown it: the scheduler's tree with each edge's text, within the bounds that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem_proto.messages import Radix, RadixNode, RadixReply, RadixWorker

from . import checks
from .backends import Backends
from .errors import ApiError, from_info
from .leading import call_leader
from .texts import Texts

MAX_NODES, DEFAULT_NODES = 2000, 200
MAX_EDGE_IDS, DEFAULT_EDGE_IDS = 64, 16
MAX_EDGE_CHARS = 256
"""Characters of an edge's text: four per token of the longest edge that can be asked for."""


@dataclass(frozen=True, slots=True)
class RadixView:
    """What `look` saw. ``texts`` holds one entry per node, None where none is to be shown."""

    model: str
    reply: RadixReply
    texts: Sequence[str | None]


def wish(max_nodes: int | None, edge_ids: int | None) -> Radix:
    """A picture's bounds, checked; None = the default. Raises `ApiError`."""
    return Radix(
        checks.whole("max_nodes", max_nodes, 1, MAX_NODES, DEFAULT_NODES),
        checks.whole("edge_ids", edge_ids, 0, MAX_EDGE_IDS, DEFAULT_EDGE_IDS),
    )


def wish_from_query(query: Mapping[str, str]) -> Radix:
    """The same, from a URL's parameters. Raises `ApiError`."""
    return wish(*(_integer(name, query.get(name)) for name in ("max_nodes", "edge_ids")))


def _integer(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 12):
        raise checks.invalid(name, "an integer", text[:32])
    return int(text)


async def look(backends: Backends, texts: Texts, wanted: Radix, view: str, deadline: float) -> RadixView:
    """Ask the leading scheduler for the tree, and a tokenizer for the text of its edges.

    Args:
        view: ``off`` | ``shape`` | ``text``, see `GatewayConfig.radix_view`.
        deadline: clock time.

    Raises:
        ApiError: ``not_found`` where nothing is to be shown; nobody answers.
    """
    if view == "off":
        raise ApiError("not_found", "This server does not show its cache.")
    if view == "shape":
        wanted = Radix(wanted.max_nodes, 0)
    reply = await call_leader(backends, wanted, RadixReply)
    if reply.error is not None:
        raise from_info(reply.error, {})
    shown = [index for index, node in enumerate(reply.nodes) if node.ids and not node.salted]
    edges: list[str | None] = [None] * len(reply.nodes)
    if view == "text" and shown:
        ids = tuple(reply.nodes[index].ids for index in shown)
        decoded = await texts.decode(ids, skip_special_tokens=False, deadline=deadline)
        for index, text in zip(shown, decoded, strict=True):
            edges[index] = _short(text, reply.nodes[index])
    return RadixView(backends.model, reply, edges)


def _short(text: str, node: RadixNode) -> str:
    """The beginning of an edge's text; an ellipsis where it goes on, instead of a character that was cut there."""
    whole = 4 * node.tokens <= len(node.ids) and len(text) <= MAX_EDGE_CHARS
    return text if whole else text[:MAX_EDGE_CHARS].rstrip("\ufffd") + "…"


def share(part: int, whole: int) -> float:
    """``part`` of ``whole`` in [0, 1], to four digits; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0


def to_json(view: RadixView) -> dict[str, Any]:
    """The body of ``GET /radix``."""
    reply = view.reply
    return {
        "model": view.model,
        "page_size": reply.page_size,
        "total_nodes": reply.total_nodes,
        "total_tokens": reply.total_tokens,
        "namespaces": reply.namespaces,
        "waiting": reply.waiting,
        "workers": [_worker(worker, reply.workers) for worker in reply.workers],
        "nodes": [
            _node(index, node, text, reply.workers)
            for index, (node, text) in enumerate(zip(reply.nodes, view.texts, strict=True))
        ],
    }


def _worker(worker: RadixWorker, workers: Sequence[RadixWorker]) -> dict[str, Any]:
    plain = {name: getattr(worker, name) for name in worker.__struct_fields__}
    return plain | {
        "share": share(worker.placed, sum(one.placed for one in workers)),
        "hit_share": share(worker.cached_tokens, worker.prompt_tokens),
    }


def _node(index: int, node: RadixNode, text: str | None, workers: Sequence[RadixWorker]) -> dict[str, Any]:
    return {
        "id": index,
        "parent": node.parent,
        "tokens": node.tokens,
        "depth": node.depth,
        "wanted": node.wanted,
        "pinned": node.pinned,
        "hidden": node.hidden,
        "text": text,
        "salted": node.salted,
        "workers": {workers[copy.worker].instance: {"locks": copy.locks, "hits": copy.hits} for copy in node.copies},
    }
