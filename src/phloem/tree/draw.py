"""A picture of the cache as something Rich can print."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .picture import Node, Picture, Worker, visible

BAR_CELLS = 20
"""Columns of a worker's bar."""
TEXT_CELLS = 56
"""Columns of an edge's text."""
MAX_LEVELS = 12
"""Levels that are indented; what is deeper stands one below the other, since Rich draws nothing where no column is left."""
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PARTS = (("held", "red", "█"), ("locked", "yellow", "█"), ("cached", "green", "█"), ("free", "bright_black", "░"))
"""Parts of a worker's pages in the order in which the bar shows them; their colours are those of the numbers beside it."""


def draw(picture: Picture, note: str = "") -> RenderableType:
    """Header, one line per worker, the tree. ``note`` stands above in red."""
    marks = {worker.instance: _mark(index) for index, worker in enumerate(picture.workers)}
    parts: list[RenderableType] = [Text(visible(note), style="bold red")] if note else []
    return Group(*parts, _header(picture), _workers(picture.workers, marks), Text(), _tree(picture, marks))


def _mark(index: int) -> Text:
    """What stands for a worker in the tree."""
    letter = LETTERS[index] if index < len(LETTERS) else f"({index})"
    return Text(letter, style=COLOURS[index % len(COLOURS)])


def _header(picture: Picture) -> Text:
    facts = [
        f"pages of {picture.page_size} tokens",
        _count(picture.total_nodes, "node"),
        f"{_count(picture.total_tokens, 'token')} cached",
        _count(picture.namespaces, "namespace"),
        f"{picture.waiting:,} waiting",
    ]
    return Text.assemble((visible(picture.model), "bold"), "  ", " · ".join(facts))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _workers(workers: list[Worker], marks: dict[str, Text]) -> RenderableType:
    if not workers:
        return Text("no worker", style="yellow")
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("worker")  # the one that gives way where there are few columns
    table.add_column("pages", no_wrap=True)
    for name, colour, _ in _PARTS:
        table.add_column(Text(name, style=colour), justify="right", no_wrap=True)
    for title in ("rows", "traffic", "found"):
        table.add_column(title, justify="right", no_wrap=True)
    for worker in workers:
        pages = _pages(worker)
        table.add_row(
            marks[worker.instance],
            Text(visible(worker.instance), no_wrap=True, overflow="ellipsis"),
            _bar(pages),
            *(f"{pages[name]:,}" for name, _, _ in _PARTS),
            f"{worker.rows:,}",
            f"{worker.share:.0%}",
            f"{worker.hit_share:.0%}",
        )
    return table


def _pages(worker: Worker) -> dict[str, int]:
    """Pages by part: every page is in one of them."""
    return {
        "held": worker.pages_held,
        "locked": worker.pages_locked,
        "cached": max(worker.pages_cached - worker.pages_locked, 0),
        "free": worker.pages_free,
    }


def _bar(pages: dict[str, int]) -> Text:
    """`BAR_CELLS` cells, shared out so that no part that has a page is invisible and the cells add up."""
    total = sum(pages.values())
    if not total:
        return Text(" " * BAR_CELLS)
    cells = {name: max(round(BAR_CELLS * count / total), 1) if count else 0 for name, count in pages.items()}
    most = max(cells, key=lambda name: cells[name])
    cells[most] += BAR_CELLS - sum(cells.values())
    return Text.assemble(*((cell * cells[name], colour) for name, colour, cell in _PARTS))


def _tree(picture: Picture, marks: dict[str, Text]) -> Tree:
    root = Tree(Text("prefixes", style="bold"), guide_style="bright_black")
    drawn: dict[int, tuple[Tree, int]] = {-1: (root, 0)}
    """By node: what its children are added to, and its level."""
    hidden: list[tuple[Tree, int]] = []
    for node in picture.nodes:
        parent, above = drawn.get(node.parent, (root, 0))
        level = above + 1
        branch = parent.add(_label(node, marks, max(level - MAX_LEVELS, 0)))
        drawn[node.id] = parent if level >= MAX_LEVELS else branch, level
        if node.hidden:
            hidden.append((drawn[node.id][0], node.hidden))
    for branch, count in hidden:  # after their brothers that are shown
        branch.add(Text(f"… {count:,} more", style="bright_black"))
    if not picture.nodes:
        root.add(Text("nothing is cached", style="bright_black"))
    return root


def _label(node: Node, marks: dict[str, Text], below: int) -> Text:
    """``below``: how many levels it stands deeper than it is drawn."""
    label = Text(f"↳{below} " if below else "", no_wrap=True, overflow="ellipsis")
    for instance, copy in node.workers.items():
        mark = marks.get(instance, Text("?")).copy()
        if copy.locks:
            mark.stylize("bold reverse")
        label.append_text(mark)
    label.append(" " if node.workers else "- ")
    label.append_text(_text(node))
    counts = [(_count(node.tokens, "token"), "")]
    hits, locks = (sum(getattr(copy, name) for copy in node.workers.values()) for name in ("hits", "locks"))
    counts += [(_count(hits, "hit"), "green")] if hits else []
    counts += [(_count(locks, "lock"), "yellow")] if locks else []
    counts += [(f"{node.wanted:,} wanted", "magenta")] if node.wanted else []
    counts += [(f"{node.pinned:,} pinned", "cyan")] if node.pinned else []
    for text, style in counts:
        label.append("  ")
        label.append(text, style=style)
    return label


def _text(node: Node) -> Text:
    if node.salted:
        return Text("(salted)", style="italic bright_black")
    if node.text is None:
        return Text("(no text)", style="bright_black")
    text = Text(f"“{visible(node.text)}”", style="white")
    text.truncate(TEXT_CELLS, overflow="ellipsis")
    return text
