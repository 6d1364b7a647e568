"""Python, and the packages of each service."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from .finding import Finding, error, ok, warning

EXTRAS = ("gateway", "tokenizer", "gpu-worker", "grammar")
"""Of the services that need more than the base installation."""
MORE = ("all", "bench")
"""Of what else there is."""
MODULES = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "protobuf": "google.protobuf",
    "pyyaml": "yaml",
}
"""What distributions are imported as, where it is not their name."""
PURPOSES = {
    "httpx": "phloem bench serve, tree and chaos",
    "huggingface-hub": "models by hub id",
    "matplotlib": "pictures of phloem bench (extra `bench`)",
    "pyyaml": "phloem up",
}
"""What single commands need a distribution for."""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution as it is here. ``version`` None = it is not; ``least``: the version we ask for, "" = any."""

    name: str
    version: str | None
    least: str = ""

    @property
    def old(self) -> bool:
        """Whether it is older than what we ask for."""
        return self.version is not None and () < _numbers(self.version) < _numbers(self.least)


def findings() -> Iterator[Finding]:
    """Python, each service's packages, what single commands need."""
    yield python(sys.version_info[:3], platform.system())
    try:
        wanted = requires("phloem") or []
    except PackageNotFoundError:
        yield warning("packages", "Phloem is not installed, so that nobody says what it needs", "pip install '.[all]'")
        return
    services: set[str] = set()
    for extra in EXTRAS:
        needs = needed(wanted, extra)
        services.update(needs)
        yield of_service(extra, [look(name, least) for name, least in needs.items()])
    others = {name: least for extra in MORE for name, least in needed(wanted, extra).items() if name not in services}
    yield of_commands([look(name, least) for name, least in sorted(others.items())])


def needed(wanted: Iterable[str], extra: str) -> dict[str, str]:
    """Distributions of an extra, each with the least version, "" = any. wanted: requirements, as metadata has them."""
    found = {}
    for requirement in wanted:
        match = re.match(r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*(?:[>=]=\s*([\w.]+))?", requirement)
        if match and re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", requirement) and match[1] != "phloem":
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2] or ""
    return found


def python(found: tuple[int, int, int], system: str) -> Finding:
    text = f"Python {'.'.join(map(str, found))} on {system} {platform.machine()}"
    if found < (3, 11, 0):
        return error("python", f"{text}: too old", "use Python 3.11 or newer")
    if system != "Linux":
        return warning("python", f"{text}: made for Linux, and tested there alone", "use Linux, a container say")
    return ok("python", text)


def of_service(extra: str, packages: list[Package]) -> Finding:
    """Whether a service has all it needs."""
    missing = [one.name for one in packages if one.version is None]
    old = [f"{one.name} {one.version} (needs {one.least})" for one in packages if one.old]
    install = f"pip install 'phloem[{extra}]', or 'phloem[all]' for all services"
    if missing:
        text = f"no {', '.join(missing)}: the service can't run here"
        return error(extra, text, f"{install}; nothing, if it runs on another machine")
    if old:
        return warning(extra, f"older than what is tested: {', '.join(old)}", install)
    return ok(extra, ", ".join(f"{one.name} {one.version}" for one in packages))


def of_commands(packages: list[Package]) -> Finding:
    """Whether single commands have what they need."""
    missing = [one.name for one in packages if one.version is None]
    if missing:
        text = "; ".join(f"no {name}: not for {PURPOSES.get(name, 'some models')}" for name in missing)
        return warning("commands", text, f"pip install {' '.join(missing)}, if you want them")
    return ok("commands", ", ".join(f"{one.name} {one.version}" for one in packages))


def look(name: str, least: str = "", find: Callable[[str], object] = find_spec) -> Package:
    """The distribution ``name`` as it is here, if its module could be imported."""
    try:
        there = find(MODULES.get(name, name.replace("-", "_"))) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is missing, or it was half imported
        there = False
    try:
        return Package(name, version(name) if there else None, least)
    except PackageNotFoundError:
        return Package(name, "of no version", least)


def _numbers(text: str) -> tuple[int, ...]:
    """``2.9.1+cpu`` -> (2, 9, 1)"""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
