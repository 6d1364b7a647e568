"""The order of waiting choices, kept on the tree: picking the first costs no look at the others.

A choice hangs on the deepest node of its prompt. best(v) is the first choice that can be reached from v through nodes that no worker has and
that nobody computes; it is found from v's own choices and from the best of such children, which stand in v's front. All resident
nodes with a best stand in one order, where the cached length of the node counts in. Adding or removing a choice costs its branch's
depth times a logarithm, a node that becomes resident (or no more) a logarithm, a split nothing.

What is below a node that a row computes right now can't be picked: it will be read from the tree as soon as it is there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from .node import Entry, Node, Standing
from .ordered import Ordered
from .requests import Choice


class Frontier:
    """Choices that may be picked.

    Args:
        key: a choice's place among those with the same cached length; must be unique, and stay what it is while the choice waits.
        score: a key, given how many pages are cached.
        rekey: told when the best of a resident node has changed.
    """

    def __init__(
        self,
        key: Callable[[Choice], tuple[float, ...]],
        score: Callable[[tuple[float, ...], int], tuple[float, ...]],
        rekey: Callable[[Node], None],
    ) -> None:
        self._key = key
        self._score = score
        self._rekey = rekey
        self._count = 0
        self._readable: Ordered[Standing] = Ordered()

    def __len__(self) -> int:
        return self._count

    def add(self, choice: Choice, node: Node) -> None:
        """choice hangs on node."""
        entry = self._key(choice), choice
        if node.own is None:
            node.own = [entry]
        else:
            insort(node.own, entry)
        node.own_live += 1
        self._count += 1
        self._update(node)

    def remove(self, choice: Choice, node: Node) -> None:
        """choice hangs there no more."""
        own = node.own
        assert own is not None
        at = 0
        if own[0][1] is not choice:  # mostly it is: whoever is picked was the first
            at = bisect_left(own, (self._key(choice),))
            assert own[at][1] is choice
        del own[at]
        if not own:
            node.own = None
        node.own_live -= 1
        self._count -= 1
        self._update(node)

    def first(self) -> Choice | None:
        """Who is picked next; it stays."""
        if not self._readable:
            return None
        best: Entry = self._readable.first()[-1].best
        return best[1]

    def changed(self, node: Node) -> None:
        """See `tree.Waiting`."""
        if node.best is not None and node.parent is not None:
            self._stand(node)
            self._update(node.parent)

    def split(self, upper: Node, lower: Node) -> None:
        """See `tree.Waiting`."""
        if lower.best is None or lower.copies or lower.computing:
            return
        upper.best = lower.best
        self._stand(lower)
        self._stand(upper)

    def _update(self, node: Node) -> None:
        """node's best may have changed; carry the news as far up as it matters."""
        while True:
            best = self._find(node)
            if best is node.best:
                return
            node.best = best
            self._stand(node)
            if node.parent is None or node.copies:
                self._rekey(node)
                return
            if node.computing:
                return
            node = node.parent

    @staticmethod
    def _find(node: Node) -> Entry | None:
        best = node.own[0] if node.own is not None else None
        if node.front:
            below: Entry = node.front.first()[-1].best
            if best is None or below[0] < best[0]:
                return below
        return best

    def _stand(self, node: Node) -> None:
        """Put node where its best is looked for: among all that can be read, in its parent's front, or nowhere."""
        if node.standing is not None:
            order, standing = node.standing
            order.remove(standing)
            node.standing = node.turn = None
        best, parent = node.best, node.parent
        if best is None:
            return
        if parent is None or node.copies:
            node.turn = self._score(best[0], node.depth)
            order, standing = self._readable, (*node.turn, node.order, node)
        elif node.computing:
            return
        else:
            if parent.front is None:
                parent.front = Ordered()
            order, standing = parent.front, (*best[0], node.order, node)
        order.add(standing)
        node.standing = order, standing
