"""What is played back to the scheduler, or told by peers that were taken over, changes nothing that is not theirs."""

from __future__ import annotations

from phloem_bus.terms import LEAP
from phloem_bus.told import MOST, MOST_COUNTERS, believable
from phloem_proto.messages import Beat, Live, LiveRequest, Profile
from phloem_proto.subjects import Role
from phloem_scheduler.leadership import Claim, Leadership
from phloem_scheduler.load import MOST_NAMES, added_up, load

from .world import World


def test_lists_of_live_requests_that_are_played_back_cancel_nothing() -> None:
    world = World()
    core, now = world.core, world.now
    old = world.open([1, 2], max_tokens=50, ignore_eos=True)
    former = Live((LiveRequest(old, 1, (0,)),), number=1)
    core.live("g1", former, now, 7)
    new = world.open([3, 3], max_tokens=50, ignore_eos=True)
    both = Live((LiveRequest(old, 1, (0,)), LiveRequest(new, 1, (0,))), number=2)
    core.live("g1", both, now, 7)
    newest = world.open([4, 4], max_tokens=50, ignore_eos=True)
    for _ in range(10):
        for played in (former, both):
            core.live("g1", played, now, 7)
            core.live("g1", played, now, 7)
        world.turn()
    assert {old, new, newest} <= set(core.ledger.requests)
    for number in (3, 4):  # and what it says now counts as ever
        core.live("g1", Live((LiveRequest(new, 1, (0,)),), number=number), now, 7)
    world.turn()
    assert set(core.ledger.requests) == {new}


def test_a_gateway_that_was_restarted_counts_anew() -> None:
    world = World()
    rid = world.open([1, 2], max_tokens=50, ignore_eos=True)
    world.core.live("g1", Live((LiveRequest(rid, 1, (0,)),), number=900), world.now, 7)
    for number in (1, 2):
        world.core.live("g1", Live((), number=number), world.now, 8)
    world.turn()
    assert rid not in world.core.ledger.requests


def test_our_own_beat_stays_believable_whatever_those_below_tell() -> None:
    world = World()
    below = [{f"phloem_worker_{worker}_{n}_total": MOST for n in range(MOST_COUNTERS)} for worker in range(20)]
    told = load(world.core, 1, 0, below * 50)
    assert believable(Role.SCHEDULER, Beat("ready", Profile("m"), told))
    summed = added_up([{"phloem_worker_steps_total": 2.0}, *below, {"phloem_worker_steps_total": 3.0}])
    assert (len(summed), summed["phloem_worker_steps_total"]) == (MOST_NAMES, 5.0)


def test_a_term_that_nobody_can_have_reached_is_nobodys() -> None:
    """A worker, or a false scheduler, that claims the last of all numbers must not leave us without one above it."""
    ours = Leadership("s", number=3, highest=3)
    for number in (2**53, 3 + LEAP + 1):
        ours.fenced(number, others_lead=False)
        ours.fenced(number, others_lead=True)
        ours.sees([Claim(True, number, "z")], has_workers=True)
    assert (ours.number, ours.highest) == (3, 3)
    ours.fenced(3 + LEAP, others_lead=False)
    assert ours.number == 4 + LEAP
