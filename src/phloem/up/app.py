"""`phloem up` from its flags to its exit code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from phloem_bus.options import short_name
from phloem_model.cache import cache_root

from . import broker, compose
from .console import Console
from .errors import ComposeError
from .plan import Machine, Plan, make_plan
from .ports import LOOPBACK, Claims, Ports
from .runner import Runner

PREFIX = "PHLOEM_"


def up(
    file: Path,
    *,
    profiles: Sequence[str],
    scale: Sequence[str],
    settings: Mapping[str, str],
    nats_url: str | None,
    drain_s: float,
) -> int:
    """Run the services of ``file`` until told to stop. Returns the exit code.

    Args:
        settings: variables that beat those of the environment.
        nats_url: a running broker to use; None or "" starts one.

    Raises:
        UpError: before anything was started; one line for a person.
    """
    environ = {**os.environ, **settings}
    running = broker.inspect(nats_url) if nats_url else None
    services = compose.load(file, environ=environ, profiles=profiles)
    counts = parse_scale(scale)
    with tempfile.TemporaryDirectory(prefix="phloem-up-") as folder, Claims() as claims:  # the folder: 0700
        root = Path(folder)
        plan = make_plan(services, counts, Machine(environ, root, cache_root(), Ports(claim=claims.take), running))
        console = Console(services.services, [one.name for one in plan.instances])
        _greet(console, file, plan, environ)
        runner = Runner(plan, console, drain_s=drain_s, on_ready=lambda: _tell_ready(console, plan))
        return anyio.run(runner.run)


def parse_scale(words: Sequence[str]) -> dict[str, int]:
    """``grammar=2`` ... as numbers. Raises ComposeError."""
    counts: dict[str, int] = {}
    for word in words:
        name, _, number = word.partition("=")
        if not name or not number.isdigit() or not 1 <= int(number) <= 64:
            raise ComposeError(f"--scale: expected SERVICE=NUMBER (1 to 64), not {word!r}")
        counts[name] = int(number)
    return counts


def ignored_settings(plan: Plan, environ: dict[str, str]) -> list[str]:
    """PHLOEM_* variables of ours that no service of the plan gets: the compose file does not name them."""
    known = {"PHLOEM_CACHE", "PHLOEM_NATS_URL", "PHLOEM_MODEL", *plan.published}
    known.update(key for one in plan.instances for key in one.environment)
    return sorted(key for key in environ if key.startswith(PREFIX) and key not in known)


def _greet(console: Console, file: Path, plan: Plan, environ: dict[str, str]) -> None:
    console.say(f"{len(plan.instances)} processes from {file}; Ctrl-C drains and stops, a second one stops at once")
    for name in ignored_settings(plan, environ):
        console.say(f"{name} is ignored: {file.name} does not pass it on")


def _tell_ready(console: Console, plan: Plan) -> None:
    http = plan.published.get("PHLOEM_HTTP_PORT")
    grpc = plan.published.get("PHLOEM_GRPC_PORT")
    console.say("ready" + (f"; gRPC on {LOOPBACK}:{grpc}" if grpc else ""))
    if http:
        question = '[{"role": "user", "content": "What is the capital of France?"}]'
        key = "-H 'authorization: Bearer KEY' " if _told(plan, "PHLOEM_API_KEYS_FILE") else ""
        console.say(
            f"try: curl http://{LOOPBACK}:{http}/v1/chat/completions -H 'content-type: application/json' {key}\\"
        )
        console.say(f"""       -d '{{"model": "{_served_name(plan)}", "max_tokens": 64, "messages": {question}}}'""")


def _served_name(plan: Plan) -> str:
    """The model's name for clients, as the services were told it."""
    return _told(plan, "PHLOEM_SERVED_MODEL_NAME") or short_name(_told(plan, "PHLOEM_MODEL"))


def _told(plan: Plan, setting: str) -> str:
    """What the first service that has this setting was told; "" if none has."""
    return next((one.environment[setting] for one in plan.instances if setting in one.environment), "")
