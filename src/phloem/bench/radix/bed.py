"""What is measured on: one worker's cache in a tree, a queue on it, and choices that wait."""

from __future__ import annotations

import random
from functools import partial

from phloem_proto.messages import SamplingParams
from phloem_scheduler.cache import Cache
from phloem_scheduler.node import TOKEN_BYTES, Node
from phloem_scheduler.queue import WaitingQueue
from phloem_scheduler.requests import Choice, Request
from phloem_scheduler.tree import RadixTree

from .clock import Stopwatch

NAMESPACE = ("", "")
AGEING_S = 30.0
ARRIVAL_S = 0.001
"""Between two requests."""
PARAMS = SamplingParams(max_tokens=256)
PAGES = 1 << 22
"""More than any shape needs: pages are only counted here."""


class Bed:
    """An empty tree with a shelf, and a queue in longest-prefix-match order."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.tree = RadixTree(page_size)
        self.cache = Cache(self.tree, PAGES)
        self.queue = WaitingQueue(self.tree, "lpm", AGEING_S)
        self._opened = 0

    def store(self, prompt: bytes, stopwatch: Stopwatch | None = None) -> Node:
        """Cache prompt's whole pages, as a row that has computed them does; the stopwatch times the part that enters new pages."""
        cache = self.cache
        key = self.whole_pages(prompt)
        wanted = self.tree.want(NAMESPACE, key)
        match = cache.acquire(wanted)
        self.tree.unwant(wanted)
        pages = cache.take(cache.pages_for(len(key) // TOKEN_BYTES) - match.node.depth)
        assert pages is not None
        rest = key[match.node.depth * self.page_size * TOKEN_BYTES :]
        new = partial(cache.extend, match.node, rest, pages)
        extension = new() if stopwatch is None else stopwatch.time(new)
        cache.release(extension.node)
        return extension.node

    def whole_pages(self, prompt: bytes) -> bytes:
        """prompt without the tokens of a page that is not full."""
        unit = self.page_size * TOKEN_BYTES
        return prompt[: len(prompt) // unit * unit]

    def choice(self, prompt: bytes) -> Choice:
        """A choice that may wait, of a request that has come after all others."""
        self._opened += 1
        number = self._opened
        rid = number.to_bytes(16, "little")
        request = Request(
            rid=rid,
            attempt=1,
            gateway="",
            detokeniser="",
            ids=prompt,
            params=PARAMS,
            seed=0,
            priority=0,
            namespace=NAMESPACE,
            arrival=number * ARRIVAL_S,
            number=number,
            deadline=None,
            spec=None,
            cached_tokens=-1,
            stop_ids=frozenset(),
        )
        choice = Choice(request, 0)
        request.choices = [choice]
        choice.move("judged")
        return choice


def pick(queue: WaitingQueue) -> Choice:
    """Take who is first out of the queue, in which somebody must wait."""
    choice = queue.first()
    assert choice is not None
    queue.remove(choice)
    return choice


def some(choices: list[Choice], rng: random.Random, most: int) -> list[Choice]:
    """Up to ``most`` of them, each once, in any order."""
    return rng.sample(choices, min(most, len(choices)))
