"""The outcome of `phloem bench serve` as a picture: how times are spread over requests, throughput by round, and ratios of two servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import HashableList

from .measure import Outcome, Server
from .plan import Plan
from .record import Record
from .stats import Summary, latency_ms, ratios, spread, times, tpot_ms, ttft_ms

PANEL_INCHES = (4.6, 3.4)
DPI = 120
ALONE: list[HashableList[str]] = [["ttft", "tpot"], ["latency", "rate"]]
IN_TURN: list[HashableList[str]] = [["ttft", "tpot", "latency"], ["rate", "ratios", "ratios"]]
"""Where panels are with one server, and with two."""
COLOURS = {"A": "tab:blue", "B": "tab:orange"}
COMPARED = {
    "ttft_ms.p50": "TTFT, median",
    "tpot_ms.p50": "TPOT, median",
    "latency_ms.p50": "latency, median",
    "output_tokens_per_s": "output tokens/s",
}


def plot(plan: Plan, servers: Sequence[Server], outcome: Outcome, path: Path) -> None:
    """Write a PNG file. Raises OSError."""
    places = ALONE if len(servers) == 1 else IN_TURN
    size = (PANEL_INCHES[0] * len(places[0]), PANEL_INCHES[1] * len(places))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = figure.subplot_mosaic(places)
    # Whatever is in a model's name or a URL is no formula.
    figure.suptitle(_title(plan, servers, outcome), fontsize=9, parse_math=False)
    _spread(panels["ttft"], plan, outcome, "TTFT", ttft_ms)
    _spread(panels["tpot"], plan, outcome, "TPOT", tpot_ms)
    _spread(panels["latency"], plan, outcome, "latency", latency_ms)
    _rate(panels["rate"], outcome)
    if len(servers) > 1:
        _ratios(panels["ratios"], outcome)
    figure.savefig(path, format="png")


def _title(plan: Plan, servers: Sequence[Server], outcome: Outcome) -> str:
    rounds = f", {plan.rounds} rounds" if plan.rounds > 1 else ""
    lines = [f"{plan.workload}, up to {plan.in_flight} in flight{rounds}"]
    return "\n".join([*lines, *(f"{one.label}: {one.url}  {outcome.models[one.label]}" for one in servers)])


def _spread(axes: Axes, plan: Plan, outcome: Outcome, name: str, of: Callable[[Record], float | None]) -> None:
    """The share of requests, of all rounds together, that took no longer than so many milliseconds."""
    drawn = False
    for label in outcome.models:
        found = times((record for turn in outcome.turns if turn.label == label for record in turn.records), of)
        if figures := spread(found):
            text = f"{label}: p50 {figures.p50:.1f}, p99 {figures.p99:.1f}"
            axes.ecdf(found, label=text, color=COLOURS[label])
            drawn = True
        else:
            axes.plot([], [], label=f"{label}: {_why_empty(plan, outcome.of(label))}", color=COLOURS[label])
    if not drawn:
        _say(axes, name, [f"{label}: {_why_empty(plan, outcome.of(label))}" for label in outcome.models])
        return
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{name} ms")
    axes.set_ylabel("share of requests")
    axes.legend(fontsize=7, loc="lower right")


def _why_empty(plan: Plan, summaries: Sequence[Summary]) -> str:
    if not any(one.succeeded for one in summaries):
        return "all requests failed"
    return "no answer had two tokens" if plan.stream else "not streamed"


def _rate(axes: Axes, outcome: Outcome) -> None:
    for label in outcome.models:
        rates = [one.output_tokens_per_s for one in outcome.of(label)]
        axes.plot(range(1, len(rates) + 1), rates, "o-", label=label, color=COLOURS[label])
    if not any(turn.summary.succeeded for turn in outcome.turns):
        _say(axes, "output tokens/s", [f"{label}: all requests failed" for label in outcome.models])
        return
    _by_round(axes, max(turn.round for turn in outcome.turns) + 1)
    axes.set_ylabel("output tokens/s")
    axes.legend(fontsize=7)


def _ratios(axes: Axes, outcome: Outcome) -> None:
    pairs, compared = outcome.pairs(), outcome.comparison()
    shown = [metric for metric in COMPARED if metric in compared]
    if not shown:
        _say(axes, "B / A", ["no round in which both had answers"])
        return
    for metric in shown:
        points = [(at, one) for at, one in enumerate(ratios(pairs, metric), 1) if one is not None]
        axes.plot(*zip(*points, strict=True), "o-", label=f"{COMPARED[metric]}: {compared[metric].median:.2f}")
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    _by_round(axes, len(pairs))
    axes.set_ylabel("B / A")
    axes.legend(fontsize=7, title="median of rounds", title_fontsize=7)


def _by_round(axes: Axes, rounds: int) -> None:
    axes.set_xlabel("round")
    axes.set_xlim(0.5, rounds + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylim(bottom=0)


def _say(axes: Axes, name: str, lines: Sequence[str]) -> None:
    """Nothing but why there is nothing."""
    axes.clear()
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(name)
    axes.text(0.5, 0.5, "\n".join(lines), ha="center", va="center", transform=axes.transAxes)
