"""Waiting choices without a core around them."""

from __future__ import annotations

from phloem_proto.codec import pack_ids
from phloem_proto.messages import SamplingParams
from phloem_scheduler.node import Namespace
from phloem_scheduler.requests import Choice, Request

HERE: Namespace = ("", "")


def waiting_choice(
    number: int,
    prompt: list[int],
    *,
    priority: int = 0,
    arrival: float | None = None,
    max_tokens: int = 8,
    output: int = 0,
    namespace: Namespace = HERE,
) -> Choice:
    """A choice that waits, of a request of its own. number: its rid, and its place among those that came at one time.

    output: how many tokens it has drawn already.
    """
    request = Request(
        rid=number.to_bytes(16, "big"),
        attempt=1,
        gateway="g1",
        detokeniser="d1",
        ids=pack_ids(prompt),
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        priority=priority,
        namespace=namespace,
        arrival=float(number) if arrival is None else arrival,
        number=number,
        deadline=None,
        spec=None,
        cached_tokens=-1,
        stop_ids=frozenset(),
    )
    choice = Choice(request, 0, pack_ids([1] * output))
    request.choices.append(choice)
    choice.move("judged")
    return choice
