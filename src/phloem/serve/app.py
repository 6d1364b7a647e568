"""`phloem serve` from its settings to its exit code."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import anyio

from phloem_bus import log
from phloem_bus.process import ReadyFile, Signals
from phloem_bus.run import config_error, describe, race
from phloem_gateway.listening import address
from phloem_gateway.service import GatewayService

from .cluster import Cluster
from .settings import ServeSettings

SWITCH_S = 0.0005
"""How long one thread may hold the interpreter while another wants it: the device's thread must not wait 5 ms for the event loop."""

_log = logging.getLogger("phloem.serve")


def serve(settings: ServeSettings, *, log_format: str, log_level: str, drain_s: float, ready_file: Path | None) -> int:
    """Serve until told to stop. Returns the exit code: 0 drained, 1 failed, 2 a setting can't be used, 130 a second signal cut it short."""
    log.configure("phloem", style=log_format, level=log_level)
    if log_level == "info":  # who is here and who left is news between processes only
        logging.getLogger("phloem.bus").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_S)
    try:
        return anyio.run(
            _run, settings, drain_s, ReadyFile(ready_file), backend_options={"use_uvloop": sys.platform != "win32"}
        )
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        setting = config_error(error)
        if setting is None:
            _log.exception("failed")
            return 1
        print(describe(setting), file=sys.stderr)
        return setting.exit_code


async def _run(settings: ServeSettings, drain_s: float, ready: ReadyFile) -> int:
    gateway, services = settings.services()
    drain = anyio.Event()
    told = False

    def on_ready(state: bool) -> None:
        nonlocal told
        ready.set(state)
        if state and not told:
            told = True
            print(summary(settings, gateway), flush=True)

    async def work() -> int:
        cluster = Cluster(services, model=settings.name, drain_s=drain_s, on_ready=on_ready)
        await cluster.run(drain)
        return 0

    code = await race(work, Signals(drain).watch, ready.keep)
    return 130 if code is None else code


def summary(settings: ServeSettings, gateway: GatewayService) -> str:
    """What to do with it, once it is ready."""
    lines = [f"\nPhloem serves {settings.name}."]
    if gateway.http_port is not None:
        url = f"http://{address(_shown(settings.gateway.http_host), gateway.http_port)}"
        key = "" if settings.gateway.api_keys_file is None else "-H 'authorization: Bearer KEY' "
        lines += [
            f"  OpenAI API   {url}/v1",
            f"  try it       curl {url}/v1/chat/completions -H 'content-type: application/json' {key}\\",
            f"""                 -d '{{"model": "{settings.name}", "max_tokens": 64, "messages": """
            """[{"role": "user", "content": "What is the capital of France?"}]}'""",
        ]
    if gateway.grpc_port is not None:
        where = address(_shown(settings.gateway.grpc_host), gateway.grpc_port)
        lines.append(f"  gRPC         {where} (phloem.v1.Phloem, with reflection)")
    lines.append("  stop         Ctrl-C drains, a second one stops at once\n")
    return "\n".join(lines)


def _shown(host: str) -> str:
    """An address that a client on this machine can use."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
