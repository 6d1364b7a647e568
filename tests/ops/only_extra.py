"""Which imports an environment with only one extra would have, and a `sitecustomize` that takes all others away."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITECUSTOMIZE = """
import json, os, sys
from importlib.abc import MetaPathFinder

class OnlyExtra(MetaPathFinder):
    def __init__(self, forbidden):
        self.forbidden = frozenset(forbidden)
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in self.forbidden:
            raise ModuleNotFoundError(f"No module named {top!r} (not in this extra)", name=top)
        return None

with open(os.path.join(os.path.dirname(__file__), "forbidden.json")) as file:
    sys.meta_path.insert(0, OnlyExtra(json.load(file)))
"""


def closure(extra: str) -> set[str]:
    """Canonical names of the distributions that ``pip install phloem[extra]`` brings."""
    found: set[str] = set()
    todo = [("phloem", frozenset({extra}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for text in distribution(name).requires or []:
            requirement = Requirement(text)
            wanted = [{"extra": one} for one in sorted(extras)] or [{"extra": ""}]
            if requirement.marker is None or any(requirement.marker.evaluate(each) for each in wanted):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def forbidden(extra: str) -> list[str]:
    """Top-level modules of this environment that an environment with only ``extra`` would lack."""
    allowed = closure(extra)
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier()
        and module not in sys.stdlib_module_names
        and not any(canonicalize_name(owner) in allowed for owner in owners)
    )


def write_site(folder: Path, extra: str) -> list[str]:
    """A folder for PYTHONPATH that hides everything else. Returns what it hides."""
    hidden = forbidden(extra)
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "forbidden.json").write_text(json.dumps(hidden))
    return hidden
