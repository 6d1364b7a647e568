"""The waiting choices: on the tree, in the policy's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .dfs import DepthFirst
from .frontier import Frontier
from .node import TOKEN_BYTES, Node
from .policy import POLICIES, Policy, credit
from .requests import Choice, Stage
from .tree import RadixTree


class Order(Protocol):
    """Who of the choices on the tree is first."""

    def __len__(self) -> int: ...
    def add(self, choice: Choice, node: Node) -> None:
        """choice hangs on node."""

    def remove(self, choice: Choice, node: Node) -> None:
        """choice hangs there no more."""

    def first(self) -> Choice | None:
        """Who is picked next; it stays. None if nobody can be picked now, though somebody may wait."""

    def changed(self, node: Node) -> None:
        """See `tree.Waiting`."""

    def split(self, upper: Node, lower: Node) -> None:
        """See `tree.Waiting`."""


class WaitingQueue:
    """Hangs choices on the tree and takes them off again."""

    def __init__(self, tree: RadixTree, policy: str, ageing_s: float, reuse: bool = True) -> None:
        self.policy = POLICIES[policy]
        self.tokens = 0  # known tokens of all waiting choices, cached or not
        self._reuse = reuse
        self._ageing_s = ageing_s
        self._waiting: dict[Choice, int] = {}  # and how many tokens each counts
        self._use(tree)

    def _use(self, tree: RadixTree) -> None:
        self.tree = tree
        self._order = tree.waiting = order_of(self.policy, tree, self._ageing_s)

    def move_to(self, tree: RadixTree) -> Iterator[None]:
        """Keep the order on another tree from now on; each step hangs one of those who wait on it. The former one is left as it is."""
        self._use(tree)
        for choice in self._waiting:
            choice.node, choice.aside = None, False
        return self._hang_all(list(self._waiting))

    def _hang_all(self, choices: list[Choice]) -> Iterator[None]:
        for choice in choices:
            if choice in self._waiting and choice.node is None:
                self._hang(choice)
            yield

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, choice: Choice) -> None:
        """choice must be in stage waiting and not be in the queue. Its place depends on its request, not on when it is added."""
        assert choice.stage is Stage.WAITING
        self._waiting[choice] = choice.length
        self.tokens += choice.length
        self._hang(choice)

    def _hang(self, choice: Choice) -> None:
        size = self.tree.page_size
        usable = choice.match_limit // size * size if self._reuse else 0
        choice.node = self.tree.want(choice.request.namespace, choice.known()[: usable * TOKEN_BYTES])
        self._order.add(choice, choice.node)

    def first(self) -> Choice | None:
        """Who is picked next. It stays until it is removed, so who finds no room loses nothing."""
        return self._order.first()

    def remove(self, choice: Choice) -> None:
        """choice waits no more, whatever its stage is by now. Its node goes unless somebody else needs it."""
        node = choice.node
        self.tokens -= self._waiting.pop(choice)
        if node is None:
            return  # it was still to be hung on a new tree
        if choice.aside:
            choice.aside = False
        else:
            self._order.remove(choice, node)
        choice.node = None
        self.tree.unwant(node)

    def set_aside(self, choice: Choice) -> None:
        """Nobody looks at choice until `back`; it still counts as waiting."""
        assert choice.node is not None
        choice.aside = True
        self._order.remove(choice, choice.node)

    def back(self, choice: Choice) -> None:
        """Undo `set_aside`, if it still applies."""
        if choice.aside and choice.node is not None:
            choice.aside = False
            self._order.add(choice, choice.node)

    def __iter__(self) -> Iterator[Choice]:
        """All of them, in no order."""
        return iter(self._waiting)


def order_of(policy: Policy, tree: RadixTree, ageing_s: float) -> Order:
    """The structure that keeps this policy's order."""
    if policy.name == "dfs-weight":
        return DepthFirst(policy.key)
    if not policy.by_prefix:
        return Frontier(policy.key, lambda key, pages: key, tree.rekey)

    def score(key: tuple[float, ...], pages: int) -> tuple[float, ...]:
        return (key[0], key[1] - credit(pages * tree.page_size, ageing_s), key[2], key[3])

    return Frontier(policy.key, score, tree.rekey)
