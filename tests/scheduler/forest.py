"""The tree with waiting choices and users of several workers on it, beside an oracle that knows no nodes.

The oracle is a dictionary from prefixes to pages for each worker, the set of prefixes that rows compute, and for each choice and each user
its path. What may go, who is first and what eviction frees is worked out from these by looking at everything, page by page.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from phloem_proto.codec import unpack_ids
from phloem_scheduler.node import TOKEN_BYTES, Namespace, Node
from phloem_scheduler.policy import credit
from phloem_scheduler.queue import WaitingQueue
from phloem_scheduler.requests import Choice
from phloem_scheduler.shelf import Shelf
from phloem_scheduler.tree import RadixTree

from .depth_first import DepthFirstWalk, Waiter
from .waiting import waiting_choice

# A namespace and whole pages of packed tokens.
Prefix = tuple[Namespace, bytes]
Key = tuple[float, ...]
Item = TypeVar("Item")

SPACES: tuple[Namespace, ...] = (("", ""), ("", ""), ("", ""), ("bc", "a"), ("c", "ab"))


@dataclass(eq=False)
class User:
    """Somebody who has locked a path on a shelf, and may be computing more of `key`."""

    shelf: int
    namespace: Namespace
    key: bytes
    at: int  # bytes of key that are locked
    node: Node
    target: Node | None = None
    target_key: bytes = b""
    pinned: bool = False  # holds a lease: never extends


class Log:
    """Follows what the tree tells a watcher: what each shelf has by that."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.there: dict[Shelf, set[Prefix]] = {shelf: set() for shelf in forest.shelves}

    def _prefixes(self, node: Node, start: int) -> set[Prefix]:
        path = b""
        step: Node | None = node
        while step is not None:
            path, step = step.key + path, step.parent
        after = len(path) - len(node.key) + start * self.forest.unit
        return set(self.forest.prefixes(node.namespace, path, after))

    def stored(self, shelf: Shelf, node: Node, start: int) -> None:
        new = self._prefixes(node, start)
        assert not self.there[shelf] & new
        self.there[shelf] |= new

    def removed(self, shelf: Shelf, node: Node, start: int) -> None:
        gone = self._prefixes(node, start)
        assert self.there[shelf] >= gone
        self.there[shelf] -= gone


class Forest:
    """Each operation leaves the tree and the oracle in what should be the same state; `check` compares them.

    eviction: the oracle works out the exact order of ``lru`` and ``mru``; of the others it knows only who must go before whom.
    """

    def __init__(
        self,
        seed: int,
        *,
        page_size: int = 1,
        shelves: int = 1,
        policy: str = "fcfs",
        eviction: str = "lru",
        ageing_s: float = 400.0,
        most_waiting: int = 10,
        most_users: int = 6,
    ) -> None:
        self.rng = random.Random(seed)
        self.page_size = page_size
        self.unit = page_size * TOKEN_BYTES
        self.ageing_s = ageing_s
        self.most_waiting = most_waiting
        self.most_users = most_users
        self.eviction = eviction
        self.tree = RadixTree(page_size)
        self.queue = WaitingQueue(self.tree, policy, ageing_s)
        self.walk = DepthFirstWalk(self.tree) if policy == "dfs-weight" else None
        self.shelves = [Shelf(str(number), eviction) for number in range(shelves)]
        self.resident: list[dict[Prefix, int]] = [{} for _ in range(shelves)]
        self.used: list[dict[Prefix, int]] = [{} for _ in range(shelves)]  # when each was used last
        self.computing: list[dict[Prefix, User]] = [{} for _ in range(shelves)]
        self.log = self.tree.watcher = Log(self)
        self.choices: list[Choice] = []
        self.users: list[User] = []
        self.clock = 0
        self.pages = 0
        self.opened = 0
        # Two tokens; pages that differ at their beginning, or at their end only.
        first, last = bytearray(self.unit), bytearray(self.unit)
        first[0] = last[-TOKEN_BYTES] = 1
        self._alphabet = [bytes(self.unit), bytes(last), bytes(first)]

    # --- Operations -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One operation, drawn at random."""
        name = self.rng.choices(tuple(OPERATIONS), tuple(OPERATIONS.values()))[0]
        getattr(self, name)()

    def want(self) -> None:
        if len(self.choices) >= self.most_waiting:
            return
        namespace, key = self._draw()
        self.opened += 1
        choice = waiting_choice(
            self.opened,
            [*unpack_ids(key), *[0] * self.rng.randrange(1, self.page_size + 1)],
            priority=self.rng.choice((0, 0, 0, 1)),
            arrival=self.rng.randrange(20),  # within what a few cached pages are worth
            max_tokens=self.rng.randrange(5),
            namespace=namespace,
        )
        self.queue.add(choice)
        self.choices.append(choice)
        assert self.path(choice) == (namespace, key)

    def unwant(self) -> None:
        if self.choices:
            self.queue.remove(self._take(self.choices))

    def set_aside(self) -> None:
        """Nobody looks at some choices for a moment."""
        aside = [choice for choice in self.choices if self.rng.random() < 0.5]
        for choice in aside:
            self.queue.set_aside(choice)
        there = [choice for choice in self.choices if choice not in aside]
        self._forget(there)
        assert self.queue.first() is self.first(there)
        for choice in aside:
            self.queue.back(choice)

    def start(self) -> None:
        """A choice gets a row: what is cached is locked, the rest is computed, and it waits no more."""
        if not self.choices or len(self.users) >= self.most_users:
            return
        choice = self.queue.first() if self.rng.random() < 0.7 else self.rng.choice(self.choices)
        if choice is None:
            return
        user = self._user(choice)
        if self.rng.random() < 0.5:
            self._use(user)
        assert choice.node is not None
        if user.node is not choice.node and self.rng.random() < 0.9:
            user.target, user.target_key = choice.node, self.path(choice)[1]
            self.tree.compute(self.shelves[user.shelf], choice.node, user)
            for prefix in self.prefixes(user.namespace, user.target_key):
                if prefix not in self.resident[user.shelf]:
                    self.computing[user.shelf][prefix] = user
        self.queue.remove(choice)
        self.choices.remove(choice)

    def lock(self) -> None:
        """Somebody locks what is cached of a choice's path; the choice goes on waiting."""
        if self.choices and len(self.users) < self.most_users:
            self._user(self.rng.choice(self.choices))

    def pin(self) -> None:
        """Somebody gets a lease on what a shelf has of some key."""
        number, (namespace, key) = self.rng.randrange(len(self.shelves)), self._draw()
        have = self.longest(number, namespace, key)
        if len(self.users) < self.most_users:
            node = self.tree.pin(self.shelves[number], namespace, key)
            assert (node is None) == (have == 0)
            if node is not None:
                self.users.append(User(number, namespace, key[:have], have, node, pinned=True))

    def use(self) -> None:
        if self.users:
            self._use(self.rng.choice(self.users))

    def extend(self) -> None:
        """A user puts its next pages into the tree, along its key and perhaps beyond."""
        there = [user for user in self.users if not user.pinned]
        if not there:
            return
        user = self.rng.choice(there)
        count = self.rng.randrange(1, 4)
        missing = user.at + count * self.unit - len(user.key)
        if missing > 0:
            user.key += b"".join(self.rng.choice(self._alphabet) for _ in range(missing // self.unit))
        new = user.key[user.at : user.at + count * self.unit]
        pages = array("I", range(self.pages, self.pages + count))
        self.pages += count
        resident, shelf = self.resident[user.shelf], self.shelves[user.shelf]
        had = (self.longest(user.shelf, user.namespace, user.key[: user.at + len(new)]) - user.at) // self.unit
        self.clock += 1
        extension = self.tree.extend(shelf, user.node, new, pages, self.rng.randrange(3))
        assert extension.present == had
        user.node, start = extension.node, user.at
        user.at += len(new)
        for page, prefix in zip(pages, self.prefixes(user.namespace, user.key[: user.at], start), strict=True):
            resident.setdefault(prefix, page)
            self.computing[user.shelf].pop(prefix, None)
        self._touch(user)

    def pause(self) -> None:
        computing = [user for user in self.users if user.target is not None]
        if computing:
            user = self.rng.choice(computing)
            assert user.target is not None
            self.tree.pause(self.shelves[user.shelf], user.target, user)
            self._computes_no_more(user)

    def release(self) -> None:
        """A user goes; whatever it was still to compute, it leaves."""
        if self.users:
            self._release(self._take(self.users))

    def forget(self) -> None:
        """A user goes, and with it what only it has used of its path."""
        if not self.users:
            return
        user = self._take(self.users)
        self._release(user)
        there, locked, end = self.resident[user.shelf], self.locked(user.shelf), user.at
        gone = []
        while end and (prefix := (user.namespace, user.key[:end])) not in locked:
            if any((space, key[: -self.unit]) == prefix for space, key in there):
                break
            gone.append(there.pop(prefix))
            del self.used[user.shelf][prefix]
            end -= self.unit
        assert sorted(self.tree.forget(self.shelves[user.shelf], user.node)) == sorted(gone)

    def _release(self, user: User) -> None:
        if user.target is not None:
            self.tree.leave(self.shelves[user.shelf], user.target, user)
            self._computes_no_more(user)
        undo = self.tree.unpin if user.pinned else self.tree.release
        undo(self.shelves[user.shelf], user.node)

    def evict(self) -> None:
        number = self.rng.randrange(len(self.shelves))
        there, locked, wanted = self.resident[number], self.locked(number), self.wanted()
        unlocked = there.keys() - locked
        unwanted = len(unlocked - wanted)
        # Mostly little; often enough also of what is wanted.
        count = self.rng.choice((0, 1, 2, 3, 5, self.rng.randrange(len(unlocked) + 2), unwanted + 1, unwanted + 2))
        order = self.eviction_order(number, count)
        freed = self.tree.evict(self.shelves[number], count)
        assert len(freed) == min(count, len(unlocked)), "eviction frees exactly what it can of what was asked for"
        owner = {page: prefix for prefix, page in there.items()}
        gone = [owner[page] for page in freed]
        assert len(set(gone)) == len(gone)
        assert not locked.intersection(gone), "a locked page was freed"
        assert sum(prefix not in wanted for prefix in gone) == min(count, unwanted), "a wanted page went first"
        if order is not None:
            assert sorted(freed) == sorted(order), "not those whose turn it was"
        for prefix in gone:
            del there[prefix], self.used[number][prefix]

    # --- What the oracle knows ------------------------------------------------------------------------------------------

    def prefixes(self, namespace: Namespace, key: bytes, after: int = 0) -> Iterator[Prefix]:
        """Of key: those longer than `after` bytes, shortest first."""
        for end in range(after + self.unit, len(key) + 1, self.unit):
            yield namespace, key[:end]

    def path(self, choice: Choice) -> Prefix:
        """What of a prompt may come from a cache: whole pages, and not the last token."""
        usable = choice.match_limit // self.page_size * self.page_size
        return choice.request.namespace, choice.request.ids[: usable * TOKEN_BYTES]

    def anywhere(self, prefix: Prefix) -> bool:
        return any(prefix in there for there in self.resident)

    def hidden(self, prefix: Prefix) -> bool:
        return any(prefix in there for there in self.computing) and not self.anywhere(prefix)

    def longest(self, shelf: int, namespace: Namespace, key: bytes) -> int:
        """Bytes of key that shelf has."""
        have = 0
        for prefix in self.prefixes(namespace, key):
            if prefix not in self.resident[shelf]:
                break
            have = len(prefix[1])
        return have

    def locked(self, shelf: int, pinned: bool = False) -> set[Prefix]:
        there = [user for user in self.users if user.shelf == shelf and user.pinned >= pinned]
        return {prefix for user in there for prefix in self.prefixes(user.namespace, user.key[: user.at])}

    def wanted(self) -> set[Prefix]:
        return {prefix for choice in self.choices for prefix in self.prefixes(*self.path(choice))}

    def first(self, among: list[Choice] | None = None) -> Choice | None:
        """Who is picked next, by looking at everybody."""
        there = self.choices if among is None else among
        if self.walk is not None:
            return self.walk.first(self._waiters(there))
        best: tuple[Key, Choice] | None = None
        for choice in there:
            place = self._place(choice)
            if place is not None and (best is None or place < best[0]):
                best = place, choice
        return best[1] if best is not None else None

    def _place(self, choice: Choice) -> Key | None:
        """Its place in the order; None if it can't be picked now."""
        cached = b""
        for prefix in self.prefixes(*self.path(choice)):
            if self.anywhere(prefix):
                cached = prefix[1]
            elif any(prefix in there for there in self.computing):
                return None
        return self._score(choice, cached)

    def _score(self, choice: Choice, cached: bytes) -> Key:
        key = self.queue.policy.key(choice)
        if not self.queue.policy.by_prefix:
            return key
        return key[0], key[1] - credit(len(cached) // TOKEN_BYTES, self.ageing_s), *key[2:]

    def _waiters(self, there: list[Choice]) -> list[Waiter]:
        waiters = []
        for choice in there:
            hidden = [len(prefix[1]) for prefix in self.prefixes(*self.path(choice)) if self.hidden(prefix)]
            waiters.append(Waiter(choice, self.queue.policy.key(choice), *self.path(choice), max(hidden, default=0)))
        return waiters

    def eviction_order(self, shelf: int, count: int) -> list[int] | None:
        """Pages that eviction must free, one by one: the end of an unlocked path that is first by wish, turn and recency."""
        if self.eviction not in ("lru", "mru"):
            return None
        there, locked, order = dict(self.resident[shelf]), self.locked(shelf), list[int]()
        others = [self.resident[number] for number in range(len(self.shelves)) if number != shelf]
        wanted, sign = self.wanted(), 1 if self.eviction == "lru" else -1
        while len(order) < count:
            inner = {(namespace, key[: -self.unit]) for namespace, key in there}
            ends = [prefix for prefix in there if prefix not in inner and prefix not in locked]
            if not ends:
                break
            turns = self._turns([there, *others]) if wanted.intersection(ends) else {}
            out = min(
                ends,
                key=lambda prefix: (
                    (prefix in wanted, turns.get(prefix, (float("-inf"),)) if prefix in wanted else ()),
                    sign * self.used[shelf][prefix],
                ),
            )
            order.append(there.pop(out))
        return order

    def _turns(self, resident: list[dict[Prefix, int]]) -> dict[Prefix, Key]:
        """For the end of what is cached of each choice that can be reached from there: the first choice's place, negated."""
        best: dict[Prefix, Key] = {}
        if self.walk is not None:
            return {}
        for choice in self.choices:
            for namespace, prefix in reversed(list(self.prefixes(*self.path(choice)))):
                if any((namespace, prefix) in there for there in resident):
                    place = self._score(choice, prefix)
                    best[namespace, prefix] = min(best.get((namespace, prefix), place), place)
                    break
                if any((namespace, prefix) in there for there in self.computing):
                    break
        return {prefix: tuple(-part for part in place) for prefix, place in best.items()}

    # --- Comparing ------------------------------------------------------------------------------------------------------

    def check(self, fully: bool = True) -> None:
        """Compare what anybody can ask for; fully: also the tree with itself, and every page of it."""
        self._forget(self.choices)
        assert self.queue.first() is self.first()
        namespace, key = self._draw()
        for number, shelf in enumerate(self.shelves):
            assert shelf.total_pages == len(self.resident[number])
            assert shelf.pinned_pages == len(self.locked(number, pinned=True))
            assert shelf.evictable_pages == len(self.resident[number].keys() - self.locked(number))
            node, length = self.tree.find(namespace, key, shelf)
            assert length * self.unit == self.longest(number, namespace, key)
            assert node.depth >= length
        if self.users:
            user = self.rng.choice(self.users)
            pages = [self.resident[user.shelf][prefix] for prefix in self.prefixes(user.namespace, user.key[: user.at])]
            assert list(self.tree.path_pages(self.shelves[user.shelf], user.node)) == pages
        if fully:
            self._check_fully()

    def _check_fully(self) -> None:
        self.tree.check()
        found: list[dict[Prefix, int]] = [{} for _ in self.shelves]
        computing: list[dict[Prefix, object]] = [{} for _ in self.shelves]
        paths: dict[Node, bytes] = {}
        for node in self.tree.nodes():
            start = paths[node.parent] if node.parent is not None else b""
            paths[node] = start + node.key
            for number, shelf in enumerate(self.shelves):
                prefixes = list(self.prefixes(node.namespace, start + node.key, len(start)))
                if shelf in node.copies:
                    found[number].update(zip(prefixes, node.copies[shelf].pages, strict=True))
                if shelf in node.computing:
                    computing[number].update((prefix, node.computing[shelf]) for prefix in prefixes)
        assert found == self.resident
        assert [self.log.there[shelf] for shelf in self.shelves] == [set(there) for there in found]
        assert computing == self.computing
        assert len(set().union(*self.resident)) == self.tree.pages
        for number, shelf in enumerate(self.shelves):
            assert shelf.locks == sum(user.shelf == number for user in self.users)
            if not self.resident[number]:
                shelf.check([])

    def empty(self) -> None:
        """Everybody goes, and everything that was cached: nothing is left of the tree."""
        while self.users:
            self.release()
        while self.choices:
            self.unwant()
        for number, shelf in enumerate(self.shelves):
            assert len(self.tree.evict(shelf, 1 << 30)) == len(self.resident[number])
            assert (shelf.total_pages, shelf.locked_pages, shelf.copies, shelf.locks) == (0, 0, 0, 0)
            self.resident[number].clear()
        self.check()
        assert (self.tree.roots, self.tree.size, self.tree.pages, len(self.queue)) == ({}, 0, 0, 0)

    # --- Parts ----------------------------------------------------------------------------------------------------------

    def _draw(self) -> Prefix:
        count = self.rng.choice((0, 1, 2, 3, 4, 5, 7))
        return self.rng.choice(SPACES), b"".join(self.rng.choices(self._alphabet, (3, 1, 1), k=count))

    def _take(self, items: list[Item]) -> Item:
        return items.pop(self.rng.randrange(len(items)))

    def _user(self, choice: Choice) -> User:
        number = self.rng.randrange(len(self.shelves))
        assert choice.node is not None
        node = self.tree.resident(self.shelves[number], choice.node)
        self.tree.lock(self.shelves[number], node)
        namespace, key = self.path(choice)
        user = User(number, namespace, key, self.longest(number, namespace, key), node)
        assert node.depth * self.unit == user.at
        self.users.append(user)
        return user

    def _use(self, user: User) -> None:
        self.clock += 1
        self.tree.use(self.shelves[user.shelf], user.node, self.rng.randrange(3))
        self._touch(user)

    def _touch(self, user: User) -> None:
        for prefix in self.prefixes(user.namespace, user.key[: user.at]):
            self.used[user.shelf][prefix] = self.clock

    def _computes_no_more(self, user: User) -> None:
        for prefix in self.prefixes(user.namespace, user.target_key):
            if self.computing[user.shelf].get(prefix) is user:
                del self.computing[user.shelf][prefix]

    def _forget(self, there: list[Choice]) -> None:
        if self.walk is not None:
            self.walk.forget(self._waiters(there))


# What happens how often.
OPERATIONS = {
    "want": 8,
    "unwant": 2,
    "set_aside": 1,
    "start": 5,
    "lock": 1,
    "pin": 1,
    "use": 2,
    "extend": 6,
    "pause": 1,
    "release": 4,
    "forget": 0.5,
    "evict": 3,
}
