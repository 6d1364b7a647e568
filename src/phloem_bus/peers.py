"""The table of peers: who was heard when, who is silent, who is least busy. Sans-I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from phloem_proto.codec import Sender
from phloem_proto.messages import Beat, Load, Profile
from phloem_proto.subjects import Role

BEAT_S = 0.25
SUSPECT_S = 0.75
GONE_S = 1.5
DOUBT_S = 0.4
"""Silence after which we ask: a killed peer has no responders then, long before it would count as suspect."""
UNREACHABLE_S = 0.5
PROBE_S = 0.5
"""How long a probe waits for its answer."""
LEFT = "left"
"""State of a peer that said goodbye."""
_PEERS = 1024
"""Peers of one role: as many as connections to the broker."""
_FORMER = 1024
"""Processes remembered that left or were thought dead, so that a late beat does not bring one back. The oldest are forgotten."""
_FOR_GOOD = float("inf")


@dataclass(slots=True)
class Peer:
    """An instance of another role as we see it."""

    role: Role
    instance: str
    incarnation: int
    state: str
    profile: Profile
    load: Load
    term: int
    last_heard: float
    suspect: bool = False
    in_flight: int = 0
    """Our own calls that it has not answered yet."""
    heard_at: float = 0.0
    """`Patience` time of the last sign of life."""
    beaten_at: float = 0.0
    """The same of the last beat that was believed."""
    unreachable_since: float | None = None
    """`Patience` time since which nobody has listened on its subject."""
    unanswered: bool = False
    """A probe found no answer after ``GONE_S`` of silence."""
    probing: bool = False
    chosen: int = 0
    """When it was last chosen, as a count of choices."""
    number: int = 0
    """Of its last beat."""


class News(NamedTuple):
    """What a beat changed."""

    gone: Peer | None = None
    joined: Peer | None = None
    changed: Peer | None = None
    refused: str = ""
    """Why it said nothing: ``stale`` or ``peers`` (there are too many)."""


class PeerTable:
    """Peers by role and instance.

    Args:
        watched: roles that are followed.
    """

    def __init__(self, watched: Collection[Role]) -> None:
        self._peers: dict[Role, dict[str, Peer]] = {role: {} for role in sorted(watched)}
        self._former: dict[Sender, float] = {}
        self._choices = 0

    @property
    def roles(self) -> list[Role]:
        """The watched roles, sorted."""
        return list(self._peers)

    def watches(self, role: str) -> bool:
        return role in self._peers

    def of(self, role: Role) -> list[Peer]:
        """Peers of ``role`` in order of instance. Raises ``KeyError`` when the role isn't watched."""
        peers = self._peers[role]
        return [peers[instance] for instance in sorted(peers)]

    def get(self, role: Role, instance: str) -> Peer | None:
        return self._peers[role].get(instance)

    def usable(self, role: Role, exclude: Collection[str] = ()) -> list[Peer]:
        """Those that may be given work, in order of instance."""
        return [p for p in self.of(role) if p.state == "ready" and not p.suspect and p.instance not in exclude]

    def choose(self, role: Role, exclude: Collection[str]) -> Peer | None:
        """The usable peer with the fewest of our calls in flight, then by its own load, then the one chosen longest ago."""
        usable = self.usable(role, exclude)
        if not usable:
            return None
        chosen = min(usable, key=lambda p: (p.in_flight, p.load.in_flight, p.chosen))
        self._choices += 1
        chosen.chosen = self._choices
        return chosen

    def heard(self, sender: Sender, beat: Beat, now: float, patience: float) -> News:
        """Take in a beat at clock time ``now`` and `Patience` time ``patience``.

        One that is no newer than the last is not believed, unless that one was heard so long ago that its number may have been false.
        """
        former = self._former.get(sender, 0)
        if former == _FOR_GOOD or 0 < beat.number <= former:
            return News(refused="stale")
        role = Role(sender.role)
        known = self._peers[role].get(sender.instance)
        if known is None and len(self._peers[role]) >= _PEERS:
            return News(refused="peers")
        if known is None or known.incarnation != sender.incarnation:
            peer = Peer(
                role,
                sender.instance,
                sender.incarnation,
                beat.state,
                beat.profile,
                beat.load,
                beat.term,
                now,
                heard_at=patience,
                beaten_at=patience,
                number=beat.number,
            )
            if known is not None:
                self._bury(known)
            self._peers[role][sender.instance] = peer
            return News(gone=known, joined=peer)
        if 0 < beat.number <= known.number and patience - known.beaten_at < GONE_S:
            return News(refused="stale")
        known.number, known.beaten_at = beat.number, patience
        changed = (known.state, known.term, known.profile) != (beat.state, beat.term, beat.profile)
        known.state, known.term, known.profile, known.load = beat.state, beat.term, beat.profile, beat.load
        known.last_heard = now
        self.answered(known, patience)
        return News(changed=known if changed else None)

    def left(self, sender: Sender) -> Peer | None:
        """A goodbye: remove and return the peer, ``left``, if it was here. Beats of that incarnation no longer count."""
        self._remember(sender, _FOR_GOOD)
        peer = self._peers[Role(sender.role)].get(sender.instance)
        if peer is None or peer.incarnation != sender.incarnation:
            return None
        del self._peers[peer.role][peer.instance]
        peer.state = LEFT
        return peer

    def remove(self, peer: Peer) -> bool:
        """Remove a peer that is thought dead; False if it is not here any more. It comes back with its next beat, not with a former one."""
        if self._peers[peer.role].get(peer.instance) is not peer:
            return False
        self._remember(Sender(peer.role, peer.instance, peer.incarnation), peer.number)
        del self._peers[peer.role][peer.instance]
        return True

    def answered(self, peer: Peer, patience: float) -> None:
        """A sign of life."""
        peer.heard_at = patience
        peer.suspect = False
        peer.unreachable_since = None
        peer.unanswered = False

    def unreachable(self, peer: Peer, patience: float) -> None:
        """Nobody listens on its subject: no new work, and gone when that lasts."""
        peer.suspect = True
        if peer.unreachable_since is None:
            peer.unreachable_since = patience

    def unanswered(self, peer: Peer, asked: float, patience: float) -> None:
        """A probe sent at ``asked`` found no answer; that counts after ``GONE_S`` of silence, if patient time ran meanwhile."""
        peer.unreachable_since = None
        if patience - peer.heard_at >= GONE_S and patience - asked >= PROBE_S / 2:
            peer.unanswered = True

    def tick(self, patience: float) -> tuple[list[Peer], list[Peer]]:
        """Who is dead, and who should be probed now. Dead ones stay in the table until `remove`."""
        dead: list[Peer] = []
        doubtful: list[Peer] = []
        for peer in (peer for role in self._peers for peer in self.of(role)):
            silence = patience - peer.heard_at
            if silence >= SUSPECT_S:
                peer.suspect = True
            since = peer.unreachable_since
            if peer.unanswered or (since is not None and patience - since >= UNREACHABLE_S):
                dead.append(peer)
            elif not peer.probing and (silence >= DOUBT_S or since is not None):
                doubtful.append(peer)
        return dead, doubtful

    def _bury(self, peer: Peer) -> None:
        self._remember(Sender(peer.role, peer.instance, peer.incarnation), _FOR_GOOD)

    def _remember(self, sender: Sender, number: float) -> None:
        """Beats of ``sender`` up to ``number`` say nothing any more."""
        self._former[sender] = number
        while len(self._former) > _FORMER:
            del self._former[next(iter(self._former))]
