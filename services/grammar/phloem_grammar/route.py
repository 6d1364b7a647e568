"""Which engines may be asked for a spec, in order: the part of judging that reads the whole source and needs no engine."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_proto.messages import GrammarSpec

from .admission import xgrammar_gap
from .gaps import llguidance_gap
from .limits import Limits
from .normalise import Normalised, normalise
from .refusal import Refused


@dataclass(frozen=True, slots=True)
class Route:
    """A well-formed spec and who may compile it."""

    spec: Normalised
    engines: tuple[str, ...]
    """Never empty. Each enforces the spec completely or rejects it."""
    gap: Refused | None = None
    """Why llguidance is not among them."""


def route(spec: GrammarSpec, limits: Limits) -> Route:
    """Normalise a spec and choose its engines. A pure function; 0.3 s at worst, for a source at the size limits.

    Raises:
        Refused: malformed, over a limit, or no engine enforces it.
    """
    normalised = normalise(spec, limits)
    if normalised.tree is None:
        return Route(normalised, ("llguidance",))
    gap = llguidance_gap(normalised.tree)
    fallback = normalised.enum_values <= limits.enum_values and xgrammar_gap(normalised.tree) is None
    engines = (("llguidance",) if gap is None else ()) + (("xgrammar",) if fallback else ())
    if gap is not None and not engines:
        raise gap
    return Route(normalised, engines, gap)
