"""Each service starts and answers with nothing installed but its own extra, over NATS, as `phloem up` runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.ports import free_port

from .only_extra import closure, write_site

pytestmark = pytest.mark.integration

EXTRAS = {
    "gateway": "gateway",
    "tokenizer": "tokenizer",
    "scheduler": "scheduler",
    "gpu-worker": "gpu-worker",
    "grammar": "grammar",
    "pull": "tokenizer",
}
DEADLINE_S = 90.0


def test_only_the_worker_needs_torch() -> None:
    assert "torch" in closure("gpu-worker")
    for extra in ("gateway", "tokenizer", "scheduler"):
        assert not {"torch", "transformers"} & closure(extra)
    assert "tokenizers" not in closure("gateway") | closure("scheduler")
    assert "grpcio" not in closure("scheduler") | closure("gpu-worker") | closure("grammar") | closure("tokenizer")


def test_what_is_not_in_the_extra_cannot_be_imported(tmp_path: Path) -> None:
    hidden = write_site(tmp_path / "site", "gateway")
    assert {"torch", "tokenizers", "llguidance", "yaml", "pytest"} <= set(hidden)
    code = "import starlette\ntry:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "torch\n"


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("phloem_gateway",), "gateway"),
        (("phloem_tokenizer",), "tokenizer"),
        (("phloem_grammar",), "grammar"),
        (("phloem_gpu_worker",), "gpu-worker"),
        (("phloem", "serve", "--model", "tiny", "--http-port", "0", "--grpc-port", "-1"), "all"),
        (("phloem", "up"), "all"),
        (("phloem", "bench", "serve"), "all"),
        (("phloem", "bench", "peer", "vllm"), "all"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(tmp_path: Path, command: tuple[str, ...], extra: str) -> None:
    write_site(tmp_path / "site", "scheduler")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(f": install Phloem with the extra '{extra}'\n")
    assert done.stderr.count("\n") == 1


def changed_compose(root: Path, folder: Path, change: Callable[[str, dict[str, Any]], None]) -> Path:
    """The deployment, with ``change(service, its x-phloem entry)`` applied."""
    shutil.copytree(root / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
    document = yaml.safe_load((root / "compose.yaml").read_text())
    for service in EXTRAS:
        document["services"][service]["x-phloem"] = local = dict(document["services"][service]["x-phloem"])
        change(service, local)
    path = folder / "compose.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def check_that_all_answer(compose: Path, log: Path) -> None:
    """Run it with the tiny model, ask for a chat and for a constrained one, and stop it."""
    http_port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "phloem", "up", "-f", str(compose), "--profile", "cpu", "--model", "tiny"]
    flags = ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    with log.open("wb") as sink:
        process = subprocess.Popen([*command, *flags], stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while "phloem       | ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        chat(http_port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    assert "started again" not in log.read_text()


def chat(http_port: int) -> None:
    question = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    with httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=30) as client:
        plain = client.post("/v1/chat/completions", json=question)
        assert plain.status_code == 200, plain.text
        constrained = client.post("/v1/chat/completions", json={**question, "response_format": wanted})
        assert constrained.status_code == 200, constrained.text
        answer = constrained.json()["choices"][0]["message"]["content"]
        assert answer.replace(" ", "").replace("\n", "") == '{"a":7}'


def test_five_services_that_can_import_only_their_own_extras_answer(root: Path, tmp_path: Path) -> None:
    def confine(service: str, local: dict[str, Any]) -> None:
        site = tmp_path / "sites" / service
        write_site(site, EXTRAS[service])
        local["environment"] = {**local.get("environment", {}), "PYTHONPATH": str(site)}

    check_that_all_answer(changed_compose(root, tmp_path, confine), tmp_path / "log")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_five_services_in_environments_of_their_own_answer(root: Path, wheel: Path, tmp_path: Path) -> None:
    """The same with real virtual environments, into which the wheel was installed with one extra."""
    for extra in sorted(set(EXTRAS.values())):
        python = tmp_path / extra / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / extra)], check=True, timeout=120)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(root / "constraints.txt")]
        subprocess.run([*install, f"{wheel}[{extra}]"], check=True, timeout=900)

    def use_own(service: str, local: dict[str, Any]) -> None:
        local["command"] = [str(tmp_path / EXTRAS[service] / "bin" / "python"), *local["command"][1:]]

    check_that_all_answer(changed_compose(root, tmp_path, use_own), tmp_path / "log")
