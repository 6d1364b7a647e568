"""Asks grammar services for verdicts; what goes wrong on the way becomes a verdict too."""

from __future__ import annotations

import anyio

from phloem_bus.errors import BusError, Disconnected, NoPeer, NoResponders, TimedOut
from phloem_bus.presence import Presence
from phloem_proto.messages import Compile, ErrorInfo, GrammarSpec, Verdict
from phloem_proto.subjects import Role

PATIENCE_S = 1.0
"""An instance that has not answered by then may be dead: another one is asked too."""
ASK_S = 3.0
"""Then they are asked again: question or answer may have been lost. Asking twice joins the compile that runs."""
OVERLAP_S = 2.0
"""How much longer a question stands than we wait for its answer, so that the next one finds its place in the queue kept."""
ABSENT_S = 10.0
"""How long a restarting grammar service is waited for, from when there is none; on a busy machine a restart takes half of that."""
PAUSE_S = 0.2
MOST_DEATHS = 2
"""Instances that died over one grammar; after that it is refused rather than tried on the next."""


async def judge(presence: Presence, spec: GrammarSpec, rid: bytes, timeout_s: float) -> Verdict:
    """The verdict on spec, which request rid asks for, within about `timeout_s`. Never raises for trouble on the bus."""
    start = anyio.current_time()
    deaths = 0
    absent_since: float | None = None
    trouble = "no grammar service is ready"
    while (left := start + timeout_s - anyio.current_time()) > 0:
        there = _there(presence)
        try:
            verdict, _ = await presence.call(
                Role.GRAMMAR,
                Compile(spec, round(1000 * min(left, ASK_S + OVERLAP_S)), rid),
                Verdict,
                timeout=min(left, ASK_S),
                busy=is_busy,
                patience=PATIENCE_S,
            )
        except (NoResponders, TimedOut):
            deaths += len(there - _there(presence))
            trouble = "the grammar service did not answer"
            absent_since = None
        except NoPeer:
            trouble = "no grammar service is ready"
            absent_since = anyio.current_time() if absent_since is None else absent_since
            if anyio.current_time() - absent_since >= ABSENT_S:
                break
        except Disconnected:
            absent_since = None  # nobody can be seen now, and everybody may be there
            trouble = "the message bus is not reachable"
        except BusError as error:
            return refusal("unavailable", str(error))
        else:
            if not is_busy(verdict):
                return verdict
            absent_since = None
            trouble = "the grammar service is busy"
        if deaths >= MOST_DEATHS:
            break
        await anyio.sleep(PAUSE_S)
    return refusal("unavailable", trouble)


def _there(presence: Presence) -> set[tuple[str, int]]:
    """Processes that are present, by instance and incarnation."""
    return {(peer.instance, peer.incarnation) for peer in presence.peers(Role.GRAMMAR)}


def is_busy(verdict: Verdict) -> bool:
    """Whether another instance is to be asked."""
    return verdict.error is not None and verdict.error.code == "busy"


def refusal(code: str, message: str) -> Verdict:
    """A verdict that says something about the moment, not about the grammar."""
    return Verdict(error=ErrorInfo(code, message, param="grammar", retry_after_ms=1000))
