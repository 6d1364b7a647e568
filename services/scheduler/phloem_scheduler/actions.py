"""What the core wants done. The shell does it; a failure comes back as an event."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_proto.messages import (
    FlushReply,
    GrammarSpec,
    KvEvents,
    KvWatchReply,
    OpenReply,
    Output,
    PinReply,
    PinsReply,
    Plan,
    RadixReply,
)

Answer = OpenReply | FlushReply | PinReply | PinsReply | RadixReply | KvWatchReply


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Over the link to a worker."""

    worker: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendOutput:
    """Over the link to a detokeniser."""

    detokeniser: str
    output: Output


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the call that came with this ticket."""

    ticket: object
    message: Answer


@dataclass(frozen=True, slots=True)
class AskCompile:
    """Have spec judged; the answer is due as `Core.verdict`. rid: of the request that asks."""

    spec: GrammarSpec
    rid: bytes


@dataclass(frozen=True, slots=True)
class SendLost:
    """Tell a gateway to open these requests again."""

    gateway: str
    rids: tuple[bytes, ...]
    reason: str
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewSession:
    """Say Hello to this worker anew: its session is void. The core has dropped it; `worker_joined` is due when it accepts."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class PublishKv:
    """To everybody who watches the caches."""

    message: KvEvents


Action = PublishKv | SendPlan | SendOutput | Reply | AskCompile | SendLost | NewSession
