"""What a false scheduler may not do to a worker."""

from __future__ import annotations

from phloem_bus.terms import LEAP
from phloem_gpu_worker.leadership import Leadership
from phloem_proto.codec import Sender


def test_a_term_that_nobody_can_have_reached_is_not_followed() -> None:
    """The true schedulers could never get above it: the worker would be lost to them until it is restarted."""
    worker = Leadership()
    false, true = Sender("scheduler", "false", 1), Sender("scheduler", "true", 2)
    for term in (2**53, LEAP + 1):
        refused = worker.judge(false, term, leader_is_there=False)
        assert refused is not None
        assert refused.code == "mismatch"
    assert worker.judge(true, 1, leader_is_there=False) is None
    worker.follow(true, 1)
    assert worker.judge(true, 2 + LEAP, leader_is_there=True) is not None
    assert worker.judge(true, 2, leader_is_there=True) is None
