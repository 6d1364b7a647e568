"""Show what `overlap` measured as tables, and write it as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from ..aim import Aim
from .aims import idle_aim
from .figures import Idle
from .outcome import OverlapOutcome
from .plan import Case, OverlapPlan
from .run import SINK, Turn, cores
from .throughput import CLIENT, FULL, Ceiling, Profile

FORMAT = 2
"""Version of the JSON file."""
SHOWN = 10
KEPT = 100
"""Functions of a service that are shown, and that are written."""


def line(turn: Turn) -> str:
    """One run in a line."""
    one = turn.idle
    shares = f"idle {one.idle_share:.2%} (by the clock: {one.lost_share:.2%})"
    where = f"round {turn.round + 1}, {turn.case.name}, depth {turn.depth}"
    return f"{where}: {shares}, {one.steps} steps, period {one.period_ms:.2f} ms"


def tables(plan: OverlapPlan, outcome: OverlapOutcome) -> Iterator[Table]:
    """Device idle, the ceiling, where it goes; what there is of it."""
    if outcome.turns:
        yield _idle(plan, outcome)
    if outcome.ceiling is not None:
        yield _ceiling(outcome.ceiling)
    for service, profile in outcome.profiles.items():
        yield _profile(service, profile)


def notes(outcome: OverlapOutcome) -> Iterator[str]:
    """How to read the tables."""
    if outcome.turns:
        yield "idle: the device did nothing, as it says itself; late: steps before which it did so for over a hundredth of a step"
        yield "by the clock: 1 - steps x step / time; in a burning device the time in which others had its core counts too"
        yield "cores: used by all processes; the sink is the bench, which plays gateway and detokeniser"
    if (found := outcome.ceiling) is not None:
        yield (
            f"the client apart: tokens/s x all CPU / (all CPU - the client's); {found.busy_share:.0%} of {found.cores} cores were used"
            + ("" if found.full else f", less than {FULL:.0%}: they do not bound the rate, and this is a guess")
        )
    if outcome.profiles:
        yield "own: CPU time without what a function calls; watched: under the profiler, which makes all of them several times as slow"
        yield (
            "unwatched: as much is taken off per call as makes the service's whole what it is without the profiler: "
            "little of what is cheap and called often is left then, though it is not free"
        )


def verdicts(outcome: OverlapOutcome) -> Iterator[str]:
    """A line for each aim."""
    for aim in outcome.aims:
        yield f"{_verdict(aim)}: {aim.text}: {_number(aim.value)} {aim.unit}, aim {_bound(aim)}"


def as_json(plan: OverlapPlan, outcome: OverlapOutcome, others: float | None) -> bytes:
    """Everything that was measured. others: cores' worth of time that others used meanwhile."""
    document = {
        "format": FORMAT,
        "kind": "phloem-bench-overlap",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "plan": asdict(plan),
        "others_cores": others,
        "turns": [asdict(turn) for turn in outcome.turns],
        "medians": [
            {"case": asdict(case), "depth": depth, "idle": asdict(one), "cores": cores(outcome.turns, case, depth)}
            for (case, depth), one in outcome.medians.items()
        ],
        "ceiling": None if outcome.ceiling is None else _ceiling_json(outcome.ceiling),
        "profiles": {name: _profile_json(profile) for name, profile in outcome.profiles.items()},
        "aims": [{**asdict(aim), "holds": aim.holds} for aim in outcome.aims],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _ceiling_json(found: Ceiling) -> dict[str, object]:
    return {
        **asdict(found),
        "tokens_per_s": found.rate,
        "tokens_per_s_client_apart": found.apart,
        "us_per_token": found.us_per_token,
        "shares": found.shares,
    }


def _profile_json(profile: Profile) -> dict[str, object]:
    functions = [
        {"place": one.function.place, "name": one.function.name, "calls": one.function.calls}
        | {"share_watched": one.watched, "share": one.net, "us_per_token": one.function.net_s / profile.tokens * 1e6}
        for one in profile.top(KEPT)
    ]
    return {"cpu_s": profile.cpu_s, "tokens": profile.tokens, "functions": functions}


def _idle(plan: OverlapPlan, outcome: OverlapOutcome) -> Table:
    rounds = f"medians of {plan.rounds} rounds" if plan.rounds > 1 else "one round"
    table = _table(
        f"how idle the device is, {rounds}",
        "device",
        "rows",
        "step ms",
        "depth",
        "idle",
        "by the clock",
        "idle us p50 / p99",
        "max ms",
        "late",
        "busy ms",
        "period ms",
        "cores",
        "sink's",
        "aim",
    )
    for (case, depth), one in outcome.medians.items():
        table.add_row(
            case.device, str(case.rows), f"{case.step_ms:g}", str(depth), *_figures(one), *_cores(outcome, case, depth)
        )
    return table


def _figures(one: Idle) -> tuple[str, ...]:
    return (
        f"{one.idle_share:.2%}",
        f"{one.lost_share:.2%}",
        f"{one.idle_p50_us:.0f} / {one.idle_p99_us:.0f}",
        f"{one.idle_max_ms:.1f}",
        f"{one.late_steps / one.steps:.0%}",
        f"{one.busy_p50_ms:.3f}",
        f"{one.period_ms:.3f}",
    )


def _cores(outcome: OverlapOutcome, case: Case, depth: int) -> tuple[str, ...]:
    """Cores used and the aim."""
    used = cores(outcome.turns, case, depth)
    aim = idle_aim(case, depth, outcome.medians[case, depth])
    verdict = "" if aim is None else f"{_bound(aim)}: {_verdict(aim)}"
    return f"{sum(used.values()):.2f}", f"{used[SINK]:.2f}", verdict


def _ceiling(found: Ceiling) -> Table:
    title = (
        f"the ceiling: {found.rate:,.0f} tokens/s at the gateway's socket with the client on the same cores, "
        f"{found.apart:,.0f} with the client apart ({found.streams} streams, {found.tokens:,.0f} tokens in {found.window_s:.1f} s)"
    )
    table = _table(title, "process", "CPU us per token", "in the kernel", "share without the client", "cores used")
    for name, us in sorted(found.us_per_token.items(), key=lambda one: one[1], reverse=True):
        share = "" if name == CLIENT else f"{found.shares[name]:.1%}"
        kernel = found.system_s[name] / found.tokens * 1e6
        table.add_row(name, f"{us:.1f}", f"{kernel:.1f}", share, f"{found.cpu_s[name] / found.window_s:.2f}")
    return table


def _profile(service: str, profile: Profile) -> Table:
    headings = ("function", "", "own share, watched", "unwatched", "us per token", "calls per token")
    table = _table(f"where it goes: {service}", *headings)
    for share in profile.top(SHOWN):
        one = share.function
        table.add_row(
            one.name.strip("<>"),
            one.place,
            f"{share.watched:.1%}",
            f"{share.net:.1%}",
            f"{one.net_s / profile.tokens * 1e6:.2f}",
            f"{one.calls / profile.tokens:.2f}" if one.calls else "",
        )
    for column in table.columns[:2]:
        column.justify = "left"
    return table


def _verdict(aim: Aim) -> str:
    return "held" if aim.holds else "NOT held"


def _bound(aim: Aim) -> str:
    return f"{'>=' if aim.least else '<='} {aim.limit:,g} {aim.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left")
    return table
