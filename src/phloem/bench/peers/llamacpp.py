"""llama.cpp, through `xllamacpp`: its own server, started from a few lines of Python in its environment."""

from __future__ import annotations

from pathlib import Path

from phloem_model import ModelFiles

from .base import Peer, PeerFailed, Start

SLOTS = 16
"""Requests at once; llama.cpp holds a fixed number."""
CONTEXT = 2048
"""Tokens per slot."""

_SERVER = """
import os, sys, threading
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.n_gpu_layers = int(sys.argv[3]), int(sys.argv[3]) * int(sys.argv[4]), 0
params.kv_unified, params.warmup = True, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count()
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
threading.Event().wait()
"""


def _start(home: Path, model: ModelFiles, port: int, more: tuple[str, ...]) -> Start:
    if model.weights.suffix != ".gguf":
        raise PeerFailed("llamacpp reads GGUF files only; give it one with --model")
    if more:
        raise PeerFailed("llamacpp takes no more flags")
    command = (str(home / "bin" / "python"), "-c", _SERVER, str(model.weights), str(port), str(SLOTS), str(CONTEXT))
    return Start(command, {})


LLAMACPP = Peer(
    name="llamacpp",
    about=f"llama.cpp (MIT) as packaged by xllamacpp, {SLOTS} slots of {CONTEXT} tokens, on all CPUs, the GGUF as it is",
    requirement="xllamacpp",
    install_flags=("--only-binary", ":all:"),
    download="one wheel of about 35 MB from the package index; about 130 MB on disk",
    port=8102,
    ready_path="/health",
    start=_start,
)
