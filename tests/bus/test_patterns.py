"""Subjects are checked for every message; those of replies are used once."""

from __future__ import annotations

import tracemalloc

from phloem_bus.patterns import check_subject


def test_subjects_that_are_used_once_do_not_pile_up() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(10_000):
            check_subject(f"_INBOX_gateway.{number:022}.{number:016}", wildcards=False)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 300_000
