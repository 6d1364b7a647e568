"""The picture of the tree: what is shown when not all can be, and that it keeps nobody waiting."""

from __future__ import annotations

import pytest

from phloem_proto.messages import Radix, RadixReply
from phloem_scheduler import core, view
from phloem_scheduler.node import TOKEN_BYTES
from phloem_scheduler.settings import Settings
from phloem_scheduler.tree import RadixTree
from phloem_scheduler.view import most_used

from .caches import key, new_cache, put
from .fake_worker import profile
from .world import World


def look(world: World, max_nodes: int = 200, edge_ids: int = 16) -> RadixReply:
    world.core.radix(Radix(max_nodes, edge_ids), "look")
    world.turn()
    reply = world.replies.pop("look")
    assert isinstance(reply, RadixReply)
    return reply


@pytest.mark.parametrize(
    ("field", "message"),
    [("max_nodes", (0, 16)), ("max_nodes", (2001, 16)), ("edge_ids", (1, -1)), ("edge_ids", (1, 65))],
)
def test_bounds_are_checked_here_too(field: str, message: tuple[int, int]) -> None:
    reply = look(World(), *message)
    assert reply.error is not None
    assert (reply.error.code, reply.error.param, reply.nodes) == ("invalid_request", field, ())


def test_salted_prompts_show_no_ids_and_children_that_are_not_shown_are_counted() -> None:
    world = World(Settings(chunk_tokens=64), profile(page_size=4))
    for last in range(3):
        world.open([7, 7, 7, 7] + [last] * 4, max_tokens=0)
    world.open([5] * 8, max_tokens=0, salt="s")
    world.finish()
    nodes = look(world, edge_ids=2).nodes
    shown = {(node.depth, node.salted, len(node.ids) // TOKEN_BYTES) for node in nodes}
    assert shown == {(4, False, 2), (8, False, 2), (4, True, 0), (8, True, 0)}
    assert len(nodes) == 6
    (one,) = look(world, max_nodes=1).nodes
    assert (one.tokens, one.hidden) == (4, 3)


def wide(roots: int, first: int, below: int) -> RadixTree:
    """A tree of this many namespaces, each with so many prompts, each of which goes on in so many ways."""
    cache = new_cache(pages=roots * first * (below + 1))
    for root in range(roots):
        for child in range(first):
            for end in range(below):
                put(cache, key(child, 1000 + end), (str(root), ""))
    return cache.tree


@pytest.mark.parametrize("shape", [(1, 90, 1), (1, 5, 30), (40, 2, 1), (6, 5, 5), (200, 1, 1)])
def test_a_picture_of_a_large_tree_looks_at_a_bounded_part_of_it(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, looked = wide(*shape), 0
    push = view._push

    def counting(*arguments: object) -> int:
        nonlocal looked
        looked += (count := push(*arguments))  # type: ignore[arg-type]
        return count

    monkeypatch.setattr(view, "MOST_COMPARED", 60)
    monkeypatch.setattr(view, "_push", counting)
    found = most_used(tree, 2000)
    assert 30 <= len(found) == looked <= 60
    place = {node: at for at, node in enumerate(found)}
    assert all(
        node.parent is not None and (node.parent.parent is None or place[node.parent] < place[node]) for node in found
    )
    if shape[0] <= 30:
        assert len({node.namespace for node in found}) == shape[0], "a namespace is not shown at all"


def test_those_who_look_get_one_picture_per_pass_and_the_surplus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_LOOKS", 3)
    world = World()
    for number in range(5):
        world.core.radix(Radix(), number)
    assert world.core.next_wakeup(world.now) == world.now
    world.turn()
    refused = {ticket: reply.error.code for ticket, reply in world.replies.items() if reply.error is not None}
    assert refused == {3: "busy", 4: "busy"}
    assert sorted(map(int, world.replies)) == [0, 3, 4]  # type: ignore[arg-type]
    world.turn()
    world.turn()
    assert len(world.replies) == 5
    assert world.core.next_wakeup(world.now) is None
