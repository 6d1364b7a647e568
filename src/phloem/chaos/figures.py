"""From streams to the figures of a row. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .stream import Stream

INTERRUPTED_S = 0.25
"""A silence shorter than this is no interruption, whatever was usual before."""
BEGINS_S = 1.0
"""A silence that begins later than this after a fault has another reason, such as a restarted process that takes the CPU."""

Texts = Mapping[int, tuple[list[int], str]]
"""Ids and text of a request's undisturbed answer, by its index."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What clients saw. Times in seconds; None = nothing to measure, or not to be compared."""

    requests: int = 0
    ended: int = 0
    refused: int = 0
    failed: int = 0
    differs: int | None = None
    """Ended with other tokens or text than undisturbed; None: rounding decides that here."""
    wrong: int = 0
    """Ended, and not what the request's schema allows."""
    duplicated: int = 0
    worst_gap_s: float | None = None
    """Longest silence of a stream after its first token."""
    noticed_s: float | None = None
    recovered_s: float | None = None
    """When the last stream that the fault had interrupted flowed again."""


def figures(
    streams: Sequence[Stream],
    reference: Texts | None,
    *,
    struck_at: float | None = None,
    noticed_at: float | None = None,
    usual_gap_s: float = 0.0,
) -> Figures:
    """Count and measure.

    Args:
        reference: undisturbed answers; None: texts are not compared.
        struck_at: when the fault began.
        usual_gap_s: the longest silence without a fault.
    """
    ended = [stream for stream in streams if stream.ended]
    return Figures(
        requests=len(streams),
        ended=len(ended),
        refused=sum(stream.refused for stream in streams),
        failed=sum(stream.failed for stream in streams),
        differs=None if reference is None else sum(_differs(stream, reference) for stream in ended),
        wrong=sum(not stream.request.is_right(stream.text) for stream in ended),
        duplicated=sum(stream.repeated > 0 for stream in streams),
        worst_gap_s=max((end - start for stream in streams for start, end in silences(stream)), default=None),
        noticed_s=None if struck_at is None or noticed_at is None else noticed_at - struck_at,
        recovered_s=None if struck_at is None else recovery(streams, struck_at, usual_gap_s),
    )


def silences(stream: Stream) -> Iterator[tuple[float, float]]:
    """Start and end of each, from the first token to the end (or until it broke)."""
    times = list(stream.arrivals)
    if times and stream.over_at > times[-1]:
        times.append(stream.over_at)
    yield from pairwise(times)


def recovery(streams: Iterable[Stream], struck_at: float, usual_gap_s: float) -> float:
    """Seconds from the fault until the last of the silences that it caused was over; 0 if it caused none."""
    caused = [
        end - struck_at
        for stream in streams
        for start, end in silences(stream)
        if end > struck_at and start < struck_at + BEGINS_S and end - start > max(INTERRUPTED_S, usual_gap_s)
    ]
    return max(caused, default=0.0)


def _differs(stream: Stream, reference: Texts) -> bool:
    known = reference.get(stream.request.index)
    return known is not None and known != (stream.ids, stream.text)
