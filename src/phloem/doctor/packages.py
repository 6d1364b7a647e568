"""Python, and the packages of each service."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from .finding import Finding, error, ok, warning

EXTRAS = {
    "gateway": {
        "grpcio": "grpc",
        "grpcio-health-checking": "grpc_health",
        "grpcio-reflection": "grpc_reflection",
        "httptools": "httptools",
        "protobuf": "google.protobuf",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
    },
    "tokenizer": {"jinja2": "jinja2", "tokenizers": "tokenizers"},
    "gpu-worker": {
        "gguf": "gguf",
        "llguidance": "llguidance",
        "numpy": "numpy",
        "safetensors": "safetensors",
        "tokenizers": "tokenizers",
        "torch": "torch",
        "xgrammar": "xgrammar",
    },
    "grammar": {
        "jsonschema-rs": "jsonschema_rs",
        "llguidance": "llguidance",
        "tokenizers": "tokenizers",
        "xgrammar": "xgrammar",
    },
}
"""What a service needs beyond the base installation: distribution -> module. A test holds it to ``pyproject.toml``."""
USES = {
    "httpx": ("httpx", "phloem bench serve, tree and chaos"),
    "huggingface-hub": ("huggingface_hub", "models by hub id"),
    "matplotlib": ("matplotlib", "pictures of phloem bench (extra `bench`)"),
    "pyyaml": ("yaml", "phloem up"),
    "transformers": ("transformers", "tokenizers that only it can make"),
}
"""What single commands need: distribution -> (module, what for)."""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution as it is here. ``version`` None = it is not; ``least``: the version we ask for, "" = any."""

    name: str
    version: str | None
    least: str = ""

    @property
    def old(self) -> bool:
        """Whether it is older than what we ask for."""
        return self.version is not None and _numbers(self.version) < _numbers(self.least)


def findings() -> Iterator[Finding]:
    """Python, each service's packages, what single commands need."""
    yield python(sys.version_info[:3], platform.system())
    for extra, needs in EXTRAS.items():
        yield of_service(extra, [look(name, module) for name, module in needs.items()])
    yield of_uses({look(name, module): use for name, (module, use) in USES.items()})


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


def of_uses(packages: dict[Package, str]) -> Finding:
    """Whether single commands have what they need."""
    missing = {one.name: use for one, use in packages.items() if one.version is None}
    if missing:
        text = "; ".join(f"no {name}: not for {use}" for name, use in missing.items())
        return warning("commands", text, f"pip install {' '.join(missing)}, if you want them")
    return ok("commands", ", ".join(f"{one.name} {one.version}" for one in packages))


def look(name: str, module: str, find: Callable[[str], object] = find_spec) -> Package:
    """The distribution ``name`` if ``module`` could be imported."""
    try:
        there = find(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is missing, or it was half imported
        there = False
    try:
        return Package(name, version(name) if there else None, least_version(name))
    except PackageNotFoundError:
        return Package(name, "?" if there else None)


def least_version(name: str) -> str:
    """The version that our own metadata asks of a distribution; "" = any."""
    try:
        wanted = requires("phloem") or []
    except PackageNotFoundError:
        return ""
    for requirement in wanted:
        match = re.match(rf"{re.escape(name)}\s*(?:\[[^\]]*\])?\s*[>=]=\s*([\w.]+)", requirement, re.IGNORECASE)
        if match is not None:
            return match[1]
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    """``2.9.1+cpu`` -> (2, 9, 1)"""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
