"""Which scheduler this worker follows. Workers are the fence: one leader at a time, terms only grow."""

from __future__ import annotations

from dataclasses import dataclass

from phloem_bus.terms import follows
from phloem_proto.codec import Sender
from phloem_proto.messages import ErrorInfo


@dataclass(slots=True)
class Leadership:
    """The highest term seen, and whose it is."""

    term: int = 0
    leader: Sender | None = None

    def judge(self, sender: Sender, term: int, leader_is_there: bool) -> ErrorInfo | None:
        """Whether ``sender`` may lead with ``term``; None = yes.

        Args:
            leader_is_there: whether the present leader (if any) is linked and heard of. Only one who is gone can be replaced,
                except by a restart of itself.
        """
        if term < self.term:
            return ErrorInfo("fenced", f"term {term} is over: this worker follows term {self.term}")
        if not follows(term, self.term):
            return ErrorInfo("mismatch", f"term {term} is none that could follow term {self.term}")
        if self.leader is None or not leader_is_there or sender.instance == self.leader.instance:
            return None
        return ErrorInfo("fenced", "another scheduler leads this worker")

    def follow(self, sender: Sender, term: int) -> None:
        """``sender`` leads from now on."""
        self.term, self.leader = term, sender
