"""A compose file, read as far as local processes need it: services, their `x-phloem` entries, secrets, mounts, order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import ComposeError
from .interpolate import interpolate_tree, read_env_file


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder that a container sees at ``target``."""

    target: str
    source: Path | None  # a bind mount or secret file on this machine; None: a named volume
    volume: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One service of the file, with the local command of its `x-phloem` entry."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]  # as in a container
    literal: frozenset[str]  # those of them that the file spells out; the others' values come from who runs it
    overrides: Mapping[str, str]  # what x-phloem sets instead, already true for this machine
    depends_on: Mapping[str, str]  # name -> "service_started" | "service_healthy" | "service_completed_successfully"
    mounts: tuple[Mount, ...]
    ports: Mapping[int, int]  # container port -> published port
    nice: int = 0
    ready_port: int = 0  # port that answers once it is up; 0: nobody waits for it
    scale: int = 1


@dataclass(frozen=True, slots=True)
class ComposeFile:
    """The services that the chosen profiles start, in the order of the file."""

    project: str
    services: Mapping[str, ComposeService]
    volumes: Mapping[str, str] = field(default_factory=dict)  # named volume -> its x-phloem word


def load(path: Path, *, environ: Mapping[str, str], profiles: Iterable[str] = ()) -> ComposeFile:
    """Read ``path`` and the `.env` beside it; ``environ`` beats `.env`. Without ``profiles``, COMPOSE_PROFILES says them.

    Raises:
        ComposeError: unreadable, malformed, or a started service without an `x-phloem` command.
    """
    variables = _variables(path.parent, environ)
    active = list(profiles) or [name for name in variables.get("COMPOSE_PROFILES", "").split(",") if name]
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ComposeError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ComposeError(f"{path}: {' '.join(str(error).split())}") from error
    return parse(document, folder=path.parent, variables=variables, profiles=active)


def parse(document: Any, *, folder: Path, variables: Mapping[str, str], profiles: Iterable[str]) -> ComposeFile:
    """The services of a parsed YAML ``document``; relative paths are below ``folder``. Raises ComposeError."""
    tree = interpolate_tree(document, variables)
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict):
        raise ComposeError("the compose file has no services")
    active = list(profiles)
    started = {name: body for name, body in services.items() if _is_active(body, active)}
    secrets = _named(tree, "secrets")
    as_written = document["services"]
    read = {
        name: _service(name, body, as_written[name], started, secrets, folder, variables)
        for name, body in started.items()
    }
    _check_order(read)
    volumes = {name: str((body or {}).get("x-phloem", "")) for name, body in _named(tree, "volumes").items()}
    return ComposeFile(project=str(tree.get("name", folder.name)), services=read, volumes=volumes)


def stop_order(services: Mapping[str, ComposeService]) -> dict[str, tuple[str, ...]]:
    """For each service, the services that must have stopped before it is asked to: those that depend on it."""
    return {name: tuple(other for other, body in services.items() if name in body.depends_on) for name in services}


def _variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    env_file = folder / ".env"
    defaults = read_env_file(env_file.read_text(encoding="utf-8")) if env_file.is_file() else {}
    return {**defaults, **environ}


def _is_active(body: Any, profiles: list[str]) -> bool:
    wanted = body.get("profiles", []) if isinstance(body, dict) else []
    return not wanted or any(profile in wanted for profile in profiles)


def _named(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = tree.get(key) or {}
    if not isinstance(section, dict):
        raise ComposeError(f"{key}: expected a mapping")
    return section


def _service(
    name: str,
    body: Any,
    as_written: Mapping[str, Any],
    started: Mapping[str, Any],
    secrets: Mapping[str, Any],
    folder: Path,
    variables: Mapping[str, str],
) -> ComposeService:
    if not isinstance(body, dict):
        raise ComposeError(f"services.{name}: expected a mapping")
    local = body.get("x-phloem")
    if not isinstance(local, dict) or not isinstance(local.get("command"), list):
        raise ComposeError(f"services.{name}: no x-phloem command, so it can't run without Docker")
    unknown = sorted(set(local) - {"command", "environment", "nice", "ready_port"})
    if unknown:
        raise ComposeError(f"services.{name}.x-phloem: unknown entry {unknown[0]!r}")
    return ComposeService(
        name=name,
        command=tuple(str(word) for word in local["command"]),
        environment=_environment(name, body.get("environment"), variables),
        literal=_literal(name, as_written.get("environment")),
        overrides=_environment(name, local.get("environment"), variables),
        depends_on=_depends_on(name, body.get("depends_on"), started),
        mounts=(*_secret_mounts(name, body, secrets, folder), *_volume_mounts(name, body, folder)),
        ports=_ports(name, body.get("ports")),
        nice=_integer(name, "x-phloem.nice", local.get("nice", 0)),
        ready_port=_integer(name, "x-phloem.ready_port", local.get("ready_port", 0)),
        scale=_integer(name, "scale", body.get("scale", 1)),
    )


def _integer(name: str, key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ComposeError(f"services.{name}.{key}: expected a whole number, not {value!r}") from None


def _environment(name: str, section: Any, variables: Mapping[str, str]) -> dict[str, str]:
    """A variable without a value is passed on from ``variables`` if it is there."""
    given = {key: variables.get(key) if value is None else value for key, value in _entries(name, section).items()}
    return {key: value for key, value in given.items() if value is not None}


def _literal(name: str, as_written: Any) -> frozenset[str]:
    return frozenset(k for k, value in _entries(name, as_written).items() if value is not None and "$" not in value)


def _entries(name: str, section: Any) -> dict[str, str | None]:
    """Both forms of ``environment``, read. None: no value is given."""
    if isinstance(section, list):
        section = {key: value if equals else None for key, equals, value in (str(e).partition("=") for e in section)}
    if section is not None and not isinstance(section, dict):
        raise ComposeError(f"services.{name}.environment: expected a mapping or a list")
    return {str(key): None if value is None else str(value) for key, value in (section or {}).items()}


def _depends_on(name: str, section: Any, started: Mapping[str, Any]) -> dict[str, str]:
    entries = section or {}
    if isinstance(entries, list):
        entries = {entry: {} for entry in entries}
    conditions: dict[str, str] = {}
    for other, body in entries.items():
        if other in started:
            conditions[other] = (body or {}).get("condition", "service_started")
        elif (body or {}).get("required", True):
            raise ComposeError(f"services.{name}.depends_on: {other} is not started by this profile")
    return conditions


def _check_order(services: Mapping[str, ComposeService]) -> None:
    """Raises ComposeError if services wait for each other in a circle."""
    placed: set[str] = set()
    while len(placed) < len(services):
        free = [name for name, body in services.items() if name not in placed and placed.issuperset(body.depends_on)]
        if not free:
            circle = ", ".join(name for name in services if name not in placed)
            raise ComposeError(f"depends_on goes in a circle: {circle}")
        placed.update(free)


def _secret_mounts(name: str, body: Mapping[str, Any], secrets: Mapping[str, Any], folder: Path) -> list[Mount]:
    mounts = []
    for entry in body.get("secrets") or []:
        source = entry if isinstance(entry, str) else str(entry.get("source"))
        target = source if isinstance(entry, str) else str(entry.get("target", source))
        declared = secrets.get(source)
        if not isinstance(declared, dict) or "file" not in declared:
            raise ComposeError(f"services.{name}.secrets: {source} is not declared with a file")
        absolute = target if target.startswith("/") else f"/run/secrets/{target}"
        mounts.append(Mount(absolute, folder / str(declared["file"]), secret=source))
    return mounts


def _volume_mounts(name: str, body: Mapping[str, Any], folder: Path) -> list[Mount]:
    mounts = []
    for entry in body.get("volumes") or []:
        if isinstance(entry, dict):
            source, target = str(entry.get("source", "")), str(entry.get("target", ""))
        else:
            source, _, rest = str(entry).partition(":")
            target = rest.partition(":")[0]
        if not source or not target.startswith("/"):
            raise ComposeError(f"services.{name}.volumes: expected SOURCE:/TARGET, not {entry!r}")
        if source.startswith((".", "/", "~")):
            mounts.append(Mount(target, folder / Path(source).expanduser()))
        else:
            mounts.append(Mount(target, None, volume=source))
    return mounts


def _ports(name: str, section: Any) -> dict[int, int]:
    ports: dict[int, int] = {}
    for entry in section or []:
        if isinstance(entry, dict):
            container, published = entry.get("target"), entry.get("published")
        else:
            *_, published, container = [None, *str(entry).removesuffix("/tcp").split(":")]
        if published is None:
            continue
        ports[_integer(name, "ports", container)] = _integer(name, "ports", published)
    return ports
