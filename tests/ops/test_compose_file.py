"""What compose.yaml promises: who runs, who may do what, and that `docker compose` itself accepts it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from phloem.up import compose

OURS = ["gateway", "tokenizer", "scheduler", "grammar", "gpu-worker"]


def rendered(root: Path, tools: Path, *flags: str, **environ: str) -> dict[str, Any]:
    """The file as compose understands it, without the caller's own settings."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PHLOEM_", "COMPOSE_"))}
    command = [
        str(tools / "docker-compose"),
        "--file",
        str(root / "compose.yaml"),
        *flags,
        "config",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**clean, **environ}, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def cpu(root: Path, tools: Path) -> dict[str, Any]:
    return rendered(root, tools)


@pytest.fixture(scope="module")
def gpu(root: Path, tools: Path) -> dict[str, Any]:
    return rendered(root, tools, "--profile", "gpu")


def test_plain_compose_runs_the_cpu_set_and_the_gpu_profile_replaces_the_worker(
    cpu: dict[str, Any], gpu: dict[str, Any]
) -> None:
    common = {"nats", "pull", "gateway", "tokenizer", "scheduler", "grammar"}
    assert set(cpu["services"]) == common | {"gpu-worker"}
    assert set(gpu["services"]) == common | {"gpu-worker-cuda"}
    devices = gpu["services"]["gpu-worker-cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_only_the_gateway_publishes_and_only_on_this_machine_unless_told(cpu: dict[str, Any]) -> None:
    published = {name: body["ports"] for name, body in cpu["services"].items() if body.get("ports")}
    assert list(published) == ["gateway"]
    assert {(port["host_ip"], port["published"], port["target"]) for port in published["gateway"]} == {
        ("127.0.0.1", "8000", 8000),
        ("127.0.0.1", "50051", 50051),
    }


def test_only_the_gateway_and_the_one_shot_pull_reach_outside(cpu: dict[str, Any]) -> None:
    assert cpu["networks"]["internal"]["internal"] is True
    outside = {name for name, body in cpu["services"].items() if "edge" in body["networks"]}
    assert outside == {"gateway", "pull"}
    assert "internal" not in cpu["services"]["pull"]["networks"]


@pytest.mark.parametrize("name", [*OURS, "nats", "pull"])
def test_containers_are_confined_and_bounded(cpu: dict[str, Any], name: str) -> None:
    body = cpu["services"][name]
    assert body["user"] == "10001:10001"
    assert body["read_only"] is True
    assert body["cap_drop"] == ["ALL"]
    assert body["security_opt"] == ["no-new-privileges:true"]
    assert body["init"] is True
    assert int(body["mem_limit"]) > 0
    assert body["logging"]["options"]["max-size"]
    assert body["logging"]["options"]["max-file"]
    assert "container_name" not in body, "a name would forbid --scale"


@pytest.mark.parametrize("name", OURS)
def test_containers_share_the_processor_as_local_processes_do(root: Path, cpu: dict[str, Any], name: str) -> None:
    """A step of niceness is worth a quarter (sched(7))."""
    shares = int(cpu["services"][name].get("cpu_shares", 1024))
    local = compose.load(root / "compose.yaml", environ={}, profiles=["cpu"]).services[name]
    assert shares == pytest.approx(1024 / 1.25**local.nice, rel=0.05)


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_probed_waits_for_what_it_needs_and_may_drain(cpu: dict[str, Any], name: str) -> None:
    body = cpu["services"][name]
    package = "phloem_" + name.replace("-", "_")
    assert body["healthcheck"]["test"] == ["CMD", "python", "-m", package, "probe"]
    assert body["depends_on"]["nats"]["condition"] == "service_healthy"
    assert body["depends_on"]["pull"]["condition"] == "service_completed_successfully"
    grace = int(body["stop_grace_period"].removesuffix("s"))
    assert grace > float(body["environment"]["PHLOEM_DRAIN_SECONDS"]) + 10
    assert body["restart"] == "unless-stopped"


def test_each_service_sees_its_own_password_alone(cpu: dict[str, Any]) -> None:
    seen = {name: [secret["source"] for secret in body.get("secrets", [])] for name, body in cpu["services"].items()}
    assert seen == {
        "nats": ["nats_passwords"],
        "pull": [],
        "gateway": ["nats_password_gateway", "api_keys"],
        "tokenizer": ["nats_password_tokenizer"],
        "scheduler": ["nats_password_scheduler"],
        "grammar": ["nats_password_grammar"],
        "gpu-worker": ["nats_password_worker"],
    }
    assert all("file" in secret for secret in cpu["secrets"].values())
    for body in cpu["services"].values():
        assert not any("PASSWORD" in key and not key.endswith("_FILE") for key in body.get("environment") or {})


def test_models_are_written_by_the_pull_alone(cpu: dict[str, Any]) -> None:
    writers = {
        name
        for name, body in cpu["services"].items()
        for volume in body.get("volumes", [])
        if volume["source"] == "models" and not volume.get("read_only")
    }
    assert writers == {"pull"}


def settings_of(package: str) -> dict[str, Any]:
    """The variables a service knows, with their defaults."""
    command = typer.main.get_command(importlib.import_module(f"{package}.__main__").app)
    return {str(param.envvar): param.default for param in command.params if getattr(param, "envvar", None)}


def as_written(default: Any) -> str:
    """A default as a person would write it into the file."""
    if default is None:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


@pytest.mark.parametrize("name", OURS)
def test_compose_names_the_settings_of_a_service_and_no_others(cpu: dict[str, Any], name: str) -> None:
    known = settings_of("phloem_" + name.replace("-", "_"))
    given = {key for key in cpu["services"][name]["environment"] if key != "PHLOEM_CACHE"}
    left_out = {"PHLOEM_INSTANCE"}  # drawn anew by each process
    if name == "gateway":
        left_out |= {"PHLOEM_METRICS_PORT", "PHLOEM_METRICS_HOST"}  # its metrics are on the HTTP port
    assert given == set(known) - left_out


def test_the_example_shows_every_setting_with_its_default(root: Path) -> None:
    compose = (root / "compose.yaml").read_text()
    example = (root / ".env.example").read_text()
    shown = dict(re.findall(r"^([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert shown.pop("COMPOSE_PROFILES") == "cpu"
    assert shown == dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", compose))
    passed_on = set(re.findall(r"^ +(PHLOEM_[A-Z_]+):(?: #.*)?$", compose, re.MULTILINE))
    defaults = {key: value for name in OURS for key, value in settings_of("phloem_" + name.replace("-", "_")).items()}
    shown_defaults = dict(re.findall(r"^#(PHLOEM_[A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert shown_defaults == {name: as_written(defaults[name]) for name in passed_on}


def test_settings_reach_the_containers(root: Path, tools: Path) -> None:
    document = rendered(
        root, tools, PHLOEM_HTTP_PORT="9001", PHLOEM_MODEL="tiny", PHLOEM_PUBLISH="0.0.0.0", PHLOEM_DTYPE="float32"
    )
    worker = document["services"]["gpu-worker"]["environment"]
    assert worker["PHLOEM_DTYPE"] == "float32"
    assert worker["PHLOEM_KV_TOKENS"] is None
    gateway = document["services"]["gateway"]
    assert gateway["ports"][0]["published"] == "9001"
    assert gateway["ports"][0]["host_ip"] == "0.0.0.0"
    assert gateway["environment"]["PHLOEM_HTTP_PORT"] == "8000"
    assert gateway["environment"]["PHLOEM_MODEL"] == "tiny"
    assert document["services"]["pull"]["command"] == ["tiny"]


@pytest.mark.parametrize("service", ["gateway", "tokenizer", "scheduler", "grammar", "gpu_worker"])
def test_a_dockerfile_is_clean_slim_and_not_root(root: Path, tools: Path, service: str) -> None:
    path = root / "services" / service / "Dockerfile"
    done = subprocess.run([tools / "hadolint", path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    text = path.read_text()
    assert text.count("\nFROM python:") == 2, "one stage builds, the other is shipped"
    assert "-slim" in text
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert ("TORCH_INDEX" in text) is (service == "gpu_worker")
