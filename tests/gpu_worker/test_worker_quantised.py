"""Quantised weights: a file's own numbers kept exactly, models computed from them, and what can't be rounded refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from phloem_bus.errors import ConfigError
from phloem_gpu_worker.config import QUANTISATIONS, WorkerConfig
from phloem_gpu_worker.decoder import build
from phloem_gpu_worker.errors import BadWeights
from phloem_gpu_worker.gguf_weights import GgufSource
from phloem_gpu_worker.grouped import Grouped, quantise
from phloem_gpu_worker.kernels.packing import pack
from phloem_gpu_worker.load import Files, PoolSize, load_native, make_runner, open_files
from phloem_gpu_worker.loading import Loader

from .batches import batch_of, ids_of, pages_of
from .compiled import LEVEL_NAMES, kernels, seeded
from .mixed_rows import assert_rows_are_their_own
from .test_worker_gguf import write_gguf
from .tiny_models import save_model

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"intermediate_size": 160, "vocab_size": 301}
"""Rows of whole groups, and a vocabulary that is no multiple of anything."""
Model = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model by name: a folder, or with a kind other than "" a GGUF of it whose matrices are of that kind, or of any with ``mixed``."""
    root = tmp_path_factory.mktemp("quantised")

    def made(name: str, kind: str = "") -> Path:
        folder = root / name
        if not folder.exists():
            save_model(name, folder, **SIZES)
        if not kind:
            return folder
        path = root / f"{name}-{kind}.gguf"
        if not path.exists():
            write_gguf(path, folder, kind_of=mixed if kind == "mixed" else lambda stored: kind)
        return path

    return made


def mixed(stored: str) -> str:
    """Parts of what is fused that are of different kinds, or of one that has no kernel."""
    kinds = {
        "attn_q": "Q4_0", "attn_k": "Q8_0", "attn_v": "F16", "attn_output": "Q4_1", "ffn_gate": "Q4_1", "ffn_up": "Q4_0",
        "ffn_down": "Q5_1", "output": "Q5_0", "token_embd": "Q4_1",
    }  # fmt: skip
    return kinds[stored.split(".")[-2]]


class Rounded:
    """A model's weights as a mode holds them, dense: what its answers have to be those of."""

    def __init__(self, files: Files, mode: str) -> None:
        self._source = files.source
        load = Loader(files.source, torch.bfloat16, CPU, mode)
        arch = files.arch
        self._held: dict[str, Tensor] = {}
        for layer in range(arch.layers):
            for part in arch.projections.values():
                names = part.names(f"layers.{layer}")
                whole = dense(load.stacked(names, part.outputs, part.inputs))
                self._held |= zip(names, torch.split(whole, list(part.outputs)), strict=True)
        untied = not arch.tied_embeddings and files.source.has("lm_head.weight")
        head = "lm_head.weight" if untied else "embed_tokens.weight"
        self._held[head] = dense(load.matrix(head, (arch.vocab_size, arch.hidden_size), 8))

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def get(self, name: str) -> Tensor:
        return self._held[name] if name in self._held else self._source.get(name).bfloat16().float()

    def quantised(self, name: str) -> bool:
        return False

    def grouped(self, name: str) -> Grouped | None:
        return None


def dense(weight: Tensor | Grouped) -> Tensor:
    return weight.dense() if isinstance(weight, Grouped) else weight.float()


CASES = [
    *((name, "", mode) for name in ("llama", "qwen2", "qwen3") for mode in ("none", "int8", "int4")),
    *((name, kind, "stored") for name in ("llama", "qwen2") for kind in ("Q4_0", "Q4_1", "Q8_0", "F16", "mixed")),
    ("llama", "Q4_1", "int8"),
    ("llama", "Q5_0", "int4"),
]
"""Model, kind of its file's matrices ("" = safetensors), mode. llama has its embedding as its head; qwen2 has biases."""


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_stored_numbers_are_those_of_the_gguf_package(model: Model, name: str, kind: str) -> None:
    """Exactly; and rows that the converter reordered are back in their place."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    source = GgufSource(model(name, kind))
    given = open_files(model(name, "")).source
    arch, load = source.architecture, Loader(source, torch.bfloat16, CPU, "stored")
    names = [part for projection in arch.projections.values() for part in projection.names("layers.1")]
    for weight in [*names, "embed_tokens.weight"]:
        plain = given.get(weight)
        outputs, inputs = plain.shape
        held = load.matrix(weight, (outputs, inputs))
        assert isinstance(held, Grouped)
        stored = GGMLQuantizationType[kind]
        # Groups lie within rows, so that reordering rows and rounding them can change places.
        expected = dequantize(quantize(plain.numpy(), stored), stored)
        assert np.array_equal(held.dense().numpy(), expected), weight


@pytest.mark.parametrize(("name", "kind", "mode"), CASES)
def test_a_model_is_computed_from_the_rounded_weights(model: Model, name: str, kind: str, mode: str) -> None:
    path, ids = model(name, kind), ids_of(40, 1)
    files = open_files(path)
    oracle = make_runner(build(files.arch, Rounded(files, mode), torch.float32, CPU), PoolSize(16, tokens=512))
    runner = make_runner(load_native(path, torch.bfloat16, kernels(), mode), PoolSize(16, tokens=512))
    batch = batch_of([(ids, 0, pages_of(16, 3, 40))], every=True)
    expected, got = oracle.forward(batch).logits, runner.forward(batch).logits
    assert got.shape == (40, 301)
    # Weights that were misread would give logits of another model, some 100 % away.
    assert ((got - expected).norm(dim=1) / expected.norm(dim=1)).max() < 0.05


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize(
    ("name", "kind", "mode"), [("llama", "", "int8"), ("qwen2", "", "int4"), ("llama", "Q4_0", "stored"), ("qwen2", "mixed", "stored")]
)  # fmt: skip
def test_a_rows_logits_are_its_own(model: Model, name: str, kind: str, mode: str, level: str) -> None:
    assert_rows_are_their_own(load_native(model(name, kind), torch.bfloat16, kernels(level), mode))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [1e-9, 1e-7, 3e-6, 1e-4, 1.0, 1e4])
def test_groups_of_any_size_are_near_what_they_were(bits: int, size: float) -> None:
    """Of small ones the scale is a half that is far from its neighbours: values must not be cut for that."""
    _, generator = seeded(1)
    weight = torch.randn(16, 64, generator=generator) * size
    error = float((quantise(weight, bits).dense() - weight).abs().max())
    assert error <= max(0.6 * float(weight.abs().max()) / (127 if bits == 8 else 7.5), 2**-24)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [0.0, 1.5003, -3e-8, 4e4, -0.1])
def test_groups_of_one_number_are_that_number(bits: int, value: float) -> None:
    rounded = quantise(torch.full((3, 64), value), bits)
    torch.testing.assert_close(rounded.dense(), torch.full((3, 64), value), rtol=0.005, atol=2**-24)


def test_rounding_in_parts_is_rounding_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, generator = seeded(2)
    weight = torch.randn(37, 96, generator=generator)
    for bits in (8, 4):
        whole = quantise(weight, bits)
        with monkeypatch.context() as patched:
            patched.setattr("phloem_gpu_worker.grouped._AT_ONCE", 960)
            parts = quantise(weight, bits)
        assert torch.equal(whole.values, parts.values)
        assert torch.equal(whole.scales, parts.scales)


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("bits", [8, 4])
def test_kernels_read_scales_that_are_no_usual_halves(level: str, bits: int) -> None:
    """Denormal, zero and near the largest."""
    _, generator = seeded(3)
    sizes = torch.tensor([1e-7, 3e-6, 0.0, 6e4])[:, None].repeat(8, 1)
    weight = quantise(torch.randn(32, 64, generator=generator).clamp(-1, 1) * sizes, bits)
    x = torch.randn(5, 64, generator=generator).bfloat16()
    expected = x.double() @ weight.dense().double().T
    got = kernels(level).multiply(pack(weight), x).double()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-11)
    assert torch.equal(got[:, 2::4], torch.zeros(5, 8, dtype=torch.float64))


def changed(model: Model, folder: Path, name: str, change: Callable[[Tensor], Tensor]) -> Path:
    """A copy of the qwen2 model with one weight changed."""
    weights = load_file(model("qwen2", "") / "model.safetensors")
    weights[name] = change(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((model("qwen2", "") / "config.json").read_bytes())
    return folder


def with_number(value: float) -> Callable[[Tensor], Tensor]:
    def change(weight: Tensor) -> Tensor:
        weight[1, 40] = value
        return weight

    return change


@pytest.mark.parametrize("mode", ["none", "int8", "int4"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("weight", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_what_is_not_a_number_is_refused_by_name(
    model: Model, tmp_path: Path, mode: str, value: float, weight: str
) -> None:
    folder = changed(model, tmp_path, weight, with_number(value))
    with pytest.raises(BadWeights, match=weight.removeprefix("model.").replace(".", r"\.")):
        load_native(folder, torch.bfloat16, kernels(), mode)


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_numbers_that_a_scale_cant_hold_are_refused_by_name(model: Model, tmp_path: Path, mode: str) -> None:
    folder = changed(model, tmp_path, "model.layers.2.self_attn.k_proj.weight", with_number(-1e9))
    with pytest.raises(BadWeights, match=r"layers\.2\.self_attn\.k_proj\.weight"):
        load_native(folder, torch.bfloat16, kernels(), mode)
    load_native(folder, torch.bfloat16, kernels())


@pytest.mark.parametrize("raw", [0x7C00, 0x7E01, 0x7800])
def test_a_files_own_scales_are_looked_at(model: Model, tmp_path: Path, raw: int) -> None:
    """Infinite, not a number, and so large that eight of it are infinite."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model("llama", ""), kind_of=lambda stored: "Q4_0")
    info = GgufSource(path)._tensors["blk.1.ffn_up.weight"]
    whole = bytearray(path.read_bytes())
    whole[info.offset + 36 : info.offset + 38] = raw.to_bytes(2, "little")
    path.write_bytes(whole)
    with pytest.raises(BadWeights, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_native(path, torch.bfloat16, kernels(), "stored")


def test_rows_that_are_no_whole_groups_are_refused_by_name_unless_they_stay_as_they_are(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The MLP of this one is 80 wide."""
    folder, path = model_folder("llama"), tmp_path / "tiny.gguf"
    for mode in ("int8", "int4"):
        with pytest.raises(BadWeights, match=r"layers\.0\.mlp\.down_proj\.weight .* 80 are no multiple of 32"):
            load_native(folder, torch.bfloat16, kernels(), mode)
    write_gguf(path, folder, kind_of=lambda stored: "F16" if "ffn_down" in stored else "Q8_0")
    batch = batch_of([(ids_of(20, 2), 0, [0, 1])])
    logits = [
        make_runner(load_native(path, torch.bfloat16, kernels(), mode), PoolSize(16, tokens=64)).forward(batch).logits
        for mode in ("none", "stored")
    ]
    torch.testing.assert_close(logits[0], logits[1], rtol=0.05, atol=0.05 * float(logits[0].std()))


def test_biases_of_a_part_of_what_is_fused_are_never_left_out(model: Model, tmp_path: Path) -> None:
    weights = load_file(model("qwen2", "") / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((model("qwen2", "") / "config.json").read_bytes())
    for mode in ("none", "int8"):
        with pytest.raises(BadWeights, match=r"layers\.0\.self_attn\.q_proj\.bias is missing"):
            load_native(tmp_path, torch.bfloat16, kernels(), mode)


def test_a_quantised_model_takes_no_float32(model: Model) -> None:
    with pytest.raises(ConfigError, match="bfloat16") as caught:
        WorkerConfig(quantize="int4", dtype="float32")
    assert caught.value.setting == "--quantize"


@pytest.mark.parametrize("mode", QUANTISATIONS)
def test_a_decode_step_reads_as_many_bytes_as_the_mode_has(model: Model, mode: str) -> None:
    decoder = load_native(model("llama", "Q4_1"), torch.bfloat16, kernels(), mode)
    numbers = sum(sum(part.outputs) * part.inputs for part in decoder.arch.projections.values()) * decoder.arch.layers
    head = -(-301 // 32) * 32 * 96
    layers, top = {"none": (16, 16), "int8": (8.5, 8.5), "int4": (5, 8.5), "stored": (5, 5)}[mode]
    assert decoder.weight_bytes == (numbers * layers + head * top) / 8


PEAK = """
import sys
from pathlib import Path
import torch
from phloem_gpu_worker.load import open_files
from phloem_gpu_worker.loading import Loader
from phloem_gpu_worker.kernels.packing import pack

def peak():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) << 10

torch.set_num_threads(1)
files = open_files(Path(sys.argv[1]))
before = peak()
head = pack(Loader(files.source, torch.bfloat16, torch.device("cpu"), sys.argv[2]).matrix("embed_tokens.weight", (60_000, 1024)))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak memory")
def test_stored_weights_take_no_detour_through_float32(model: Model, tmp_path: Path) -> None:
    """A matrix of 65 MB in Q8_0 is mapped, taken apart and packed; as float32 it would take 246 MB for itself."""
    from gguf import GGMLQuantizationType

    path = tmp_path / "large.gguf"
    raw = np.full((60_000, 1024 // 32 * 34), 17, np.uint8)
    write_gguf(
        path,
        model("llama", ""),
        {"token_embd.weight": (raw, GGMLQuantizationType.Q8_0)},
        leave_out=("embed_tokens.weight",),
    )
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), "stored"],
        capture_output=True,
        text=True,
        timeout=100,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3.5 * raw.nbytes
