"""Carry out `phloem chaos`: one deployment, undisturbed streams, then each fault in turn."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from phloem.up import compose
from phloem.up.compose import ComposeFile
from phloem.up.plan import Machine, Plan, make_plan
from phloem_bus.run import race
from phloem_model.cache import cache_root

from .deployment import Deployment
from .errors import ChaosError, NoReference, NotReady
from .faults import chosen
from .free import AnyPorts, free_ports
from .outcome import Aim, Outcome, none_fail, same_text
from .requests import streams
from .row import Fault, Result
from .scene import Scene
from .wishes import EXACT, Wishes

SCALE = {"phloem_gpu_worker": 2, "phloem_scheduler": 2, "phloem_tokenizer": 2}
"""Instances by module: enough that one of each may go."""
UNDISTURBED = Fault("undisturbed", "nothing", lambda scene, wishes: _undisturbed(scene))
TROUBLES_SHOWN = 3


@dataclass(slots=True)
class Chaos:
    """Everything that was done."""

    wishes: Wishes
    exact: bool
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    """Somebody stopped it before all was done."""
    trouble: str = ""
    """Why it could not go on."""

    @property
    def held(self) -> bool:
        return not self.trouble and all(outcome.held for outcome in self.outcomes)


async def chaos(wishes: Wishes, logs: Path | None, on_row: Callable[[str], None] = lambda name: None) -> Chaos:
    """Do all that was wished for, or what can be done until SIGINT or SIGTERM.

    Args:
        logs: existing folder to keep the processes' logs in; None: they are not kept.
        on_row: called with a fault's name when its turn comes.

    Raises:
        ChaosError: the deployment could not be brought up. (If it does not come back after a fault, that is told in what is returned.)
        UpError: the compose file can't be used.
    """
    _allow_many_files()
    with tempfile.TemporaryDirectory(prefix="phloem-chaos-") as name:
        plan = _plan(wishes, Path(name))
        deployment = Deployment(plan, Path(name) if logs is None else logs)
        found = Chaos(wishes, _is_exact(plan))
        try:
            found.interrupted = await race(lambda: _all_rows(found, deployment, on_row), _signal) is None
        except ChaosError as error:
            if not found.outcomes:
                raise
            found.trouble = str(error)
        return found


async def _all_rows(found: Chaos, deployment: Deployment, on_row: Callable[[str], None]) -> bool:
    """Append an outcome for each fault; True once all are done."""
    wishes = found.wishes
    on_row("start")
    async with deployment.running():
        requests = streams(wishes.streams, wishes.tokens, wishes.seed)
        scene = Scene(deployment, requests, tokens=wishes.tokens, exact=found.exact, seed=wishes.seed)
        await scene.whole()
        await _remember(scene)
        for fault in (UNDISTURBED, *chosen(wishes.only, wishes.long)):
            on_row(fault.name)
            found.outcomes.append(await _row(fault, scene, wishes))
    return True


async def _signal() -> None:
    """Return when somebody asks to stop."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            return


async def _remember(scene: Scene) -> None:
    """What each request gets when nothing happens; the first time, so that caches are filled as well."""
    undisturbed = await scene.undisturbed()
    bad = [stream for stream in undisturbed if not stream.ended or not stream.request.is_right(stream.text)]
    if bad:
        raise NoReference(f"{len(bad)} of {len(undisturbed)} undisturbed streams did not end well: {bad[0].trouble}")
    scene.remember(undisturbed)


async def _undisturbed(scene: Scene) -> Result:
    seen = await scene.undisturbed()
    figures = scene.count(seen)
    scene.usual_gap_s = figures.worst_gap_s or 0.0
    return Result(figures, [none_fail(figures), same_text(figures)], seen)


async def _row(fault: Fault, scene: Scene, wishes: Wishes) -> Outcome:
    result = await fault.run(scene, wishes)
    try:
        afterwards = await scene.afterwards()
    except NotReady as error:
        raise NotReady(f"after {fault.name}: {error}") from error
    troubles = dict.fromkeys(stream.trouble for stream in result.streams if stream.failed)
    aims: tuple[Aim, ...] = (*result.aims, *afterwards)
    told = tuple(troubles)[:TROUBLES_SHOWN]
    return Outcome(fault.name, fault.title, result.figures, aims, result.said, told, tuple(result.lines))


def _plan(wishes: Wishes, folder: Path) -> Plan:
    """The plan of `phloem up` with several instances. Raises `UpError`, `ChaosError`."""
    http_port, grpc_port = free_ports(2)
    environ: Mapping[str, str] = wishes.settings(os.environ, http_port, grpc_port)
    services = compose.load(wishes.file, environ=environ)
    scale = {name: count for module, count in SCALE.items() for name in _running(services, module)}
    return make_plan(services, scale, Machine(environ, folder, cache_root(), AnyPorts()))


def _running(services: ComposeFile, module: str) -> list[str]:
    """The compose services that run ``module``. Raises `ChaosError` if none does."""
    found = [name for name, body in services.services.items() if module in body.command]
    if not found:
        raise ChaosError(f"no service of the compose file runs {module}; is a profile missing (COMPOSE_PROFILES)?")
    return found


def _is_exact(plan: Plan) -> bool:
    return all(
        one.environment.get("PHLOEM_DTYPE") == EXACT for one in plan.instances if "phloem_gpu_worker" in one.argv
    )


def _allow_many_files() -> None:
    """A flood holds thousands of connections, here and in the gateway, which inherits this."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
