"""A choice in a slot of a worker: what is computed, what is planned, and whose its pages are."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from .node import Node
from .requests import Choice

if TYPE_CHECKING:
    from .worker import WorkerState


class Row:
    """Pages ``table[:tree_pages]`` belong to the tree (locked through ``node``), the rest to the row itself."""

    __slots__ = (
        "choice",
        "commits",
        "computed",
        "generation",
        "in_flight",
        "known",
        "known_tokens",
        "limit",
        "node",
        "opened",
        "planned",
        "private",
        "quota",
        "slot",
        "table",
        "target",
        "tree_pages",
        "worker",
    )

    def __init__(
        self, choice: Choice, worker: WorkerState, slot: int, node: Node, table: array[int], limit: int
    ) -> None:
        self.choice = choice
        self.worker = worker
        self.slot = slot
        self.generation = worker.next_generation(slot)
        self.node = node
        self.table = table
        self.tree_pages = len(table)
        self.private = (
            False  # the tree has a copy of its next page: the row keeps its own pages and enters nothing until it ends
        )
        self.known = choice.known()  # packed tokens the worker is given with the slot
        self.known_tokens = choice.length
        self.computed = (
            len(table) * worker.cache.page_size
        )  # known tokens whose KV is there once all plans sent have run
        self.limit = limit  # most output tokens, held ones included
        self.quota = limit - len(choice.output)  # draws that may still be planned
        self.planned = choice.length  # tokens there are at most once all plans sent have run
        self.in_flight = 0  # plans sent that hold this row
        self.opened = True  # has its slot
        self.commits = True  # results still count; false once the choice has ended or was taken away
        # The node that its prompt's path leads to: what the worker lacks of it is this row's to compute.
        self.target: Node | None = None

    @property
    def extending(self) -> bool:
        """Whether known tokens are left to be planned."""
        return self.computed < self.known_tokens

    @property
    def filled_pages(self) -> int:
        """Whole pages whose KV is final: of known tokens once planned, of drawn ones once the draw after them is committed."""
        length = self.choice.length
        tokens = self.computed if length == self.known_tokens else length - 1
        return tokens // self.worker.cache.page_size
