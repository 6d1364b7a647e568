"""A picture of the tree and of the workers' caches, bounded in size."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice

from phloem_proto.messages import ErrorInfo, Radix, RadixCopy, RadixNode, RadixReply, RadixWorker

from .node import TOKEN_BYTES, Node
from .shelf import Shelf
from .tree import RadixTree
from .worker import WorkerState

MOST_NODES = 2000
MOST_EDGE_IDS = 64
# Nodes that are compared for one picture, when not all can be shown: some 15 ms.
MOST_COMPARED = 10_000


def picture(message: Radix, tree: RadixTree, workers: Iterable[WorkerState], waiting: int) -> RadixReply:
    """What message asks for. Shown are those most in use, each with the path to it: by locks, then wishes, hits and length."""
    if not 1 <= message.max_nodes <= MOST_NODES:
        return RadixReply(
            error=ErrorInfo("invalid_request", f"max_nodes: must be between 1 and {MOST_NODES}", "max_nodes")
        )
    if not 0 <= message.edge_ids <= MOST_EDGE_IDS:
        return RadixReply(
            error=ErrorInfo("invalid_request", f"edge_ids: must be between 0 and {MOST_EDGE_IDS}", "edge_ids")
        )
    there = list(workers)
    index = {worker.cache.shelf: at for at, worker in enumerate(there)}
    place = {node: at for at, node in enumerate(most_used(tree, message.max_nodes))}
    hidden = {node: len(node.children) for node in place}
    for node in place:
        if node.parent in hidden:
            hidden[node.parent] -= 1
    return RadixReply(
        page_size=tree.page_size,
        nodes=tuple(_node(node, place, index, hidden[node], message.edge_ids, tree.page_size) for node in place),
        workers=tuple(_worker(worker) for worker in there),
        total_nodes=tree.size,
        total_tokens=tree.pages * tree.page_size,
        namespaces=len(tree.roots),
        waiting=waiting,
    )


def most_used(tree: RadixTree, count: int) -> list[Node]:
    """Up to `count` nodes below the roots, parents before children."""
    found: list[Node] = []
    heap: list[tuple[tuple[int, ...], int, Node]] = []
    most = MOST_COMPARED // 2  # the other half is for what is below
    each = max(1, most // max(1, len(tree.roots)))
    for root in islice(tree.roots.values(), most):
        _push(heap, root, each)
    left = MOST_COMPARED - len(heap)
    while heap and len(found) < count:
        node = heapq.heappop(heap)[2]
        left -= _push(heap, node, left)
        found.append(node)
    return found


def _push(heap: list[tuple[tuple[int, ...], int, Node]], node: Node, most: int) -> int:
    """Compare up to `most` children of node, the oldest; returns how many."""
    before = len(heap)
    for child in islice(node.children.values(), most):
        locks = sum(copy.locks for copy in child.copies.values())
        hits = sum(copy.hits for copy in child.copies.values())
        heapq.heappush(heap, ((-locks, -child.wanted, -hits, -len(child.key)), child.order, child))
    return len(heap) - before


def _node(
    node: Node, place: dict[Node, int], index: dict[Shelf, int], hidden: int, edge_ids: int, page_size: int
) -> RadixNode:
    assert node.parent is not None
    salted = bool(node.namespace[0])
    copies = tuple(
        RadixCopy(index[shelf], copy.locks, copy.hits) for shelf, copy in node.copies.items() if shelf in index
    )
    return RadixNode(
        parent=place.get(node.parent, -1),
        tokens=len(node.key) // TOKEN_BYTES,
        depth=node.depth * page_size,
        wanted=node.wanted,
        ids=b"" if salted else node.key[: edge_ids * TOKEN_BYTES],
        copies=copies,
        salted=salted,
        pinned=max((copy.pins for copy in node.copies.values()), default=0),
        hidden=hidden,
    )


def _worker(worker: WorkerState) -> RadixWorker:
    pool, shelf, traffic = worker.cache.pool, worker.cache.shelf, worker.traffic
    return RadixWorker(
        instance=worker.instance,
        pages=pool.total,
        pages_free=pool.free,
        pages_held=pool.held,
        pages_cached=shelf.total_pages,
        pages_locked=shelf.locked_pages,
        rows=len(worker.rows),
        placed=traffic.choices,
        prompt_tokens=traffic.prompt_tokens,
        cached_tokens=traffic.cached_tokens,
    )
