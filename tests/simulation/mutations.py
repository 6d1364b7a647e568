"""Deliberate bugs, each patched into the product by a test. A simulation that does not notice them would not notice real ones.

Not here are bugs that the system repairs before anybody notices: a cancel that is never sent, a link that never sends again, a request that is
opened again from its beginning were tried, and clients got their answers all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from phloem_bus.link_core import LinkCore
from phloem_gateway.core import Core as GatewayCore
from phloem_gateway.live import Live
from phloem_gpu_worker.core import WorkerCore
from phloem_gpu_worker.grammar_desk import GrammarDesk
from phloem_gpu_worker.slots import Slots
from phloem_proto.messages import Grammar, SlotOpen, TextFrame
from phloem_scheduler.lifecycle import Lifecycle
from phloem_scheduler.pages import PagePool
from phloem_scheduler.requests import Choice
from phloem_scheduler.shelf import Shelf
from phloem_scheduler.tree import RadixTree
from phloem_tokenizer.streams import Streams

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, Mutation] = {}


def mutation(apply: Mutation) -> Mutation:
    """Enter a bug under its function's name."""
    MUTATIONS[apply.__name__] = apply
    return apply


@mutation
def a_lock_is_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixTree, "release", lambda self, shelf, node: None)


@mutation
def a_page_is_freed_while_it_is_read(patch: pytest.MonkeyPatch) -> None:
    def release(self: RadixTree, shelf: Shelf, node: Any) -> None:
        real(self, shelf, node)
        if not any(copy_locked(shelf, each) for each in path(node)):
            return
        real(self, shelf, node)

    def path(node: Any) -> list[Any]:
        found = []
        while node is not None:
            found.append(node)
            node = node.parent
        return found

    def copy_locked(shelf: Shelf, node: Any) -> bool:
        copy = node.copies.get(shelf)
        return copy is not None and copy.locks > 1

    real = RadixTree.release
    patch.setattr(RadixTree, "release", release)


@mutation
def a_duplicate_page_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    def give_back(self: PagePool, pages: array[int]) -> None:
        real(self, pages[1:])

    real = PagePool.give_back
    patch.setattr(PagePool, "give_back", give_back)


@mutation
def a_mark_of_computing_is_not_taken_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixTree, "leave", lambda self, shelf, node, row: None)


@mutation
def a_frame_that_came_twice_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    def receive(self: LinkCore, seq: int, ack: int, body: bytes, now: float, patience: float) -> str:
        if 0 < seq == self._applied:
            self._applied -= 1
        return real(self, seq, ack, body, now, patience)

    real = LinkCore.receive
    patch.setattr(LinkCore, "receive", receive)


@mutation
def an_end_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    def apply(self: GatewayCore, live: Live, frame: TextFrame, now: float) -> None:
        real(self, live, frame, now)
        if frame.end is not None:
            live.put(frame)

    real = GatewayCore._apply
    patch.setattr(GatewayCore, "_apply", apply)


@mutation
def a_detokeniser_forgets_what_the_client_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Streams, "_held_ids", lambda self, held, max_tokens: [])


@mutation
def a_matcher_is_not_replayed(patch: pytest.MonkeyPatch) -> None:
    def open_(self: GrammarDesk, slot: int, grammar: Grammar, held: list[int]) -> None:
        real(self, slot, grammar, [])

    real = GrammarDesk.open
    patch.setattr(GrammarDesk, "open", open_)


@mutation
def a_resumed_request_is_drawn_as_if_it_were_new(patch: pytest.MonkeyPatch) -> None:
    def open_(self: Slots, opened: SlotOpen) -> None:
        real(self, msgspec.structs.replace(opened, prompt_tokens=len(opened.ids) // 4))

    real = Slots.open
    patch.setattr(Slots, "open", open_)


@mutation
def a_worker_keeps_its_slots_in_a_new_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerCore, "reset", lambda self: None)


@mutation
def rows_of_a_gone_worker_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "drop", lambda self, row, failed: None)


@mutation
def a_retracted_request_loses_its_last_token(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Lifecycle, row: Any) -> None:
        if row.choice.output:
            row.choice.output.pop()
        real(self, row)

    real = Lifecycle.settle
    patch.setattr(Lifecycle, "settle", settle)


@mutation
def a_cancelled_choice_keeps_its_row(patch: pytest.MonkeyPatch) -> None:
    def end(self: Lifecycle, choice: Choice, end: Any, new_tokens: int = 0, tell: bool = True) -> None:
        if end.reason == "abort":
            return
        real(self, choice, end, new_tokens, tell)

    real = Lifecycle.end
    patch.setattr(Lifecycle, "end", end)
