"""The least that has to be computed when calls run one by one in a given order: Belady's rule on pages, with all calls known.

What is evicted is the page whose next use is furthest away (Belady 1966). The next use of a page is never later than that of a page behind it
on the same path; so, with the deeper one first among equals, paths are only ever cut at their ends, as a radix tree must.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .calls import Call
from .simulate import Pool

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Optimum:
    """What Belady's rule comes to."""

    prompt_tokens: int
    prefill_tokens: int

    @property
    def hit_share(self) -> float:
        return 1 - self.prefill_tokens / self.prompt_tokens


def optimum(calls: Sequence[Call], pool: Pool) -> Optimum:
    """Run calls one by one. Each needs pages for its prompt and answer at once, and uses whole cached pages, for all but its last token.

    Answers are taken to be of no use to anybody else. A call that does not fit into the pool is the caller's mistake.
    """
    paths = page_paths(calls, pool.page_size)
    usable = [(call.prompt_tokens - 1) // pool.page_size for call in calls]
    upcoming = _next_uses(paths, usable)
    cached: dict[int, tuple[int, int]] = {}  # page -> (-next use, -depth): the smallest goes first
    heap: list[tuple[tuple[int, int], int]] = []
    computed = 0
    for call, path, most, nexts in zip(calls, paths, usable, upcoming, strict=True):
        present = 0
        while present < most and path[present] in cached:
            present += 1
        computed += call.prompt_tokens - present * pool.page_size
        for page in path[:present]:
            del cached[page]  # in use: it can't go
        room = pool.pages - -(-(call.tokens - 1) // pool.page_size)  # nobody needs the KV of the last token
        while len(cached) > room:
            key, page = heapq.heappop(heap)
            if cached.get(page) == key:
                del cached[page]
        for depth, (page, following) in enumerate(zip(path, nexts, strict=True)):
            if following < _NEVER:
                cached[page] = (-following, -depth)
                heapq.heappush(heap, (cached[page], page))
    return Optimum(sum(call.prompt_tokens for call in calls), computed)


def page_paths(calls: Sequence[Call], page_size: int) -> list[list[int]]:
    """For each call the whole pages of its prompt, from the front: equal numbers are equal pages behind equal pages."""
    unit = page_size * 4
    numbers: dict[tuple[int, bytes], int] = {}
    paths = []
    for call in calls:
        path, at = [], 0
        for start in range(0, call.prompt_tokens // page_size * unit, unit):
            at = numbers.setdefault((at, call.ids[start : start + unit]), len(numbers) + 1)
            path.append(at)
        paths.append(path)
    return paths


def working_set(calls: Sequence[Call], page_size: int) -> int:
    """Distinct whole pages of all prompts."""
    return len({page for path in page_paths(calls, page_size) for page in path})


def _next_uses(paths: list[list[int]], usable: list[int]) -> list[list[int]]:
    """For each page of each path the number of the next path that can use it: that has it among its first `usable` ones."""
    seen: dict[int, int] = {}
    found: list[list[int]] = []
    for number in range(len(paths) - 1, -1, -1):
        found.append([seen.get(page, _NEVER) for page in paths[number]])
        seen.update(dict.fromkeys(paths[number][: usable[number]], number))
    return found[::-1]
