"""Peers: what is installed and said, the model in the peer's form, and that a peer ends when we do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.ports import free_port
from typer.testing import CliRunner

from phloem.bench import app
from phloem.bench.app import PEER_NAMES
from phloem.bench.peers import PEERS, Peer, PeerFailed
from phloem.bench.peers.export import export
from phloem.bench.peers.run import run_peer
from phloem.bench.peers.venv import ensure, home_of, installed
from phloem_model import ModelFiles, resolve

from .fake_peer import fake_peer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHLOEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> ModelFiles:
    """The tiny model as a GGUF in float32, its q and k rows interleaved as llama.cpp's converter does it."""
    folder = resolve("tiny")
    weights = load_file(folder.weights / "model.safetensors")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, weight in weights.items():
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        writer.add_tensor(f"{names.get_name(name.removesuffix('.weight'))}.weight", interleave(weight, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(folder, weights=path, name="tiny")


def interleave(weight: torch.Tensor, heads: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    if heads:
        weight = weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
    return weight.contiguous().to(torch.float32).numpy()


def test_a_gguf_becomes_the_folder_it_was_made_from(tiny: ModelFiles, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    export(tiny, folder, torch.float32)
    original = resolve("tiny")
    written, expected = load_file(folder / "model.safetensors"), load_file(original.weights / "model.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    again = resolve(str(folder))
    assert (again.eos_ids, again.bos, again.context_length) == (tiny.eos_ids, tiny.bos, 2048)
    assert again.chat_template == tiny.chat_template
    assert again.tokenizer_digest == tiny.tokenizer_digest


def test_vllm_gets_a_folder_and_keeps_it(tiny: ModelFiles, tmp_path: Path) -> None:
    start = PEERS["vllm"].start(tmp_path, tiny, 1234, ("--enforce-eager",))
    folder = Path(start.command[2])
    assert start.command[-3:] == ("--port", "1234", "--enforce-eager")
    assert start.command[start.command.index("--max-model-len") + 1] == "2048"
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert PEERS["vllm"].start(tmp_path, tiny, 1234, ()).command[2] == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_llamacpp_takes_a_gguf_only(tiny: ModelFiles, tmp_path: Path) -> None:
    assert str(tiny.weights) in PEERS["llamacpp"].start(tmp_path, tiny, 1, ()).command
    with pytest.raises(PeerFailed, match="GGUF"):
        PEERS["llamacpp"].start(tmp_path, resolve("tiny"), 1, ())


def test_peers_are_those_the_command_names() -> None:
    assert tuple(PEERS) == PEER_NAMES
    result = CliRunner().invoke(app, ["peer", "sglang"])
    assert result.exit_code == 2
    assert "vllm, llamacpp" in result.output


def write_wheel(folder: Path) -> Path:
    """The smallest wheel that pip installs without an index."""
    path = folder / "nothing_much-1-py3-none-any.whl"
    about = "nothing_much-1.dist-info"
    with ZipFile(path, "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing-much\nVersion: 1\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


def test_installing_says_what_and_how_big_first_and_happens_once(tmp_path: Path) -> None:
    finished: list[Path] = []
    peer = replace(
        fake_peer(), requirement=str(write_wheel(tmp_path)), install_flags=("--no-index",), finish=finished.append
    )
    said: list[str] = []
    home = ensure(peer, said.append)
    assert home == home_of(peer)
    assert any("about 1 MB" in line for line in said)
    assert finished == [home]
    assert installed(peer)
    assert ensure(peer, said.append) == home
    assert len(finished) == 1
    assert not installed(replace(peer, requirement="other"))


@pytest.mark.long
def test_a_failed_installation_is_one_line_and_tried_again() -> None:
    peer = replace(fake_peer(), requirement="no-such-thing-here", install_flags=("--no-index",))
    for _ in range(2):
        with pytest.raises(PeerFailed, match="fake could not be installed"):
            ensure(peer, lambda line: None)
    assert not installed(peer)


def pretend_installed(peer: Peer) -> None:
    home = home_of(peer)
    home.mkdir(parents=True)
    (home / "phloem-peer.txt").write_text(peer.requirement)


def test_a_peer_that_ends_by_itself_is_a_failure() -> None:
    peer = fake_peer(exit_code=3)
    pretend_installed(peer)
    said: list[str] = []
    assert run_peer(peer, "tiny", free_port(), (), said.append) == 1
    assert "fake ended with code 3" in said


DRIVER = """
import sys
from phloem.bench.peers.run import run_peer
from tests.bench.fake_peer import fake_peer
sys.exit(run_peer(fake_peer(), "tiny", int(sys.argv[1]), (), lambda line: print(line, flush=True)))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_peer_ends_when_we_are_told_to(number: signal.Signals, code: int) -> None:
    pretend_installed(fake_peer())
    port = free_port()
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", DRIVER, str(port)]
    with subprocess.Popen(command, cwd=root, env=dict(os.environ), stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line.startswith(f"fake serves at http://127.0.0.1:{port}")
        driver.send_signal(number)
        assert driver.wait(20) == code
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
