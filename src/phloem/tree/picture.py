"""The reply of ``GET /radix``, as far as it is drawn."""

from __future__ import annotations

import msgspec

_SHOWN = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}


class Copy(msgspec.Struct, frozen=True):
    """A node's KV on one worker."""

    locks: int
    hits: int


class Node(msgspec.Struct, frozen=True):
    """One edge of the tree. ``parent`` comes earlier; -1 = none."""

    id: int
    parent: int
    tokens: int
    wanted: int
    pinned: int
    hidden: int
    salted: bool
    workers: dict[str, Copy]
    text: str | None = None


class Worker(msgspec.Struct, frozen=True):
    """One worker's cache, in pages, and its share of the traffic, in [0, 1]. ``pages_locked`` are among ``pages_cached``."""

    instance: str
    pages: int
    pages_free: int
    pages_held: int
    pages_cached: int
    pages_locked: int
    rows: int
    share: float
    hit_share: float


class Picture(msgspec.Struct, frozen=True):
    """The cache at one moment."""

    model: str
    page_size: int
    total_nodes: int
    total_tokens: int
    namespaces: int
    waiting: int
    workers: list[Worker]
    nodes: list[Node]


def visible(text: str) -> str:
    """``text`` on one line and harmless in a terminal: prompts may hold escape sequences."""
    return "".join(_SHOWN.get(char, char if char.isprintable() else "·") for char in text)
