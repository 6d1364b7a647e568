"""Model files that are damaged, absurd or of another kind: one line that names what is wrong, and never anything else."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from phloem_gpu_worker.config import DEVICES, DTYPES, KERNELS, QUANTISATIONS
from phloem_gpu_worker.errors import BadWeights, UnsupportedModel, WorkerError
from phloem_gpu_worker.gguf_weights import GgufSource
from phloem_gpu_worker.hf_config import from_config
from phloem_gpu_worker.hf_rules import read_hf_config
from phloem_gpu_worker.load import PoolSize, load_native, make_runner, open_files
from phloem_model import ModelError, resolve
from phloem_model.byte_level import byte_alphabet
from phloem_model.cache import cache_root
from phloem_model.from_gguf import facts_from_metadata
from phloem_model.gguf_header import read_header
from phloem_model.gguf_tokenizer import convert
from phloem_model.tiny import TinyShape, write_tiny
from tests.bus.server import NatsServer

from .batches import batch_of
from .compiled import kernels
from .test_worker_gguf import write_gguf

SHAPE = TinyShape(layers=1, hidden=64, heads=4, kv_heads=2, feed_forward=32, context_length=64)
WORDS = [*byte_alphabet(), "he", "<a>", "<b>", "<|endoftext|>"]
JUNK: list[Any] = [
    None, 0, -1, 1, 3, 2**31, 2**64, 10**400, 1.5, -0.0, float("nan"), float("inf"), True, False, "", "64", "x" * 10_000, "a\nb",
    [], [1], {}, {"a": {"b": 1}},
]  # fmt: skip
"""What a field may hold that it should not."""
Damage = Callable[[bytearray, np.random.Generator], bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model folder."""
    path = tmp_path_factory.mktemp("whole")
    write_tiny(path, shape=SHAPE)
    return path


@pytest.fixture(scope="module")
def gguf(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a whole GGUF, its tokenizer in it."""
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(path, folder, kind_of=lambda stored: "Q4_1" if "ffn" in stored else "Q8_0", words=WORDS)
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Digests and tokenizers of broken files are forgotten afterwards; compiled kernels are not compiled again."""
    kept, root = cache_root() / "kernels", tmp_path / "cache"
    kept.mkdir(parents=True, exist_ok=True)
    root.mkdir()
    (root / "kernels").symlink_to(kept)
    monkeypatch.setenv("PHLOEM_CACHE", str(root))
    yield
    shutil.rmtree(root)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A folder to break."""
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    return path


def load(path: Path, mode: str = "none") -> None:
    """Find and load a model as a worker does, and compute a few tokens of it."""
    decoder = load_native(resolve(str(path)).weights, torch.bfloat16, kernels(), mode)
    make_runner(decoder, PoolSize(16, tokens=32)).forward(batch_of([([1, 2, 3], 0, [0])]))


def refusal(path: Path, mode: str = "none") -> str:
    """The line that says why a model is refused; empty if it is loaded."""
    return line_of(lambda: load(path, mode))


def line_of(read: Callable[[], object]) -> str:
    """The line of the error that ``read`` raises; empty if it raises none."""
    try:
        read()
    except (ModelError, WorkerError) as error:
        line = str(error)
    else:
        return ""
    assert line
    assert "\n" not in line
    assert len(line) < 600
    return line


def change(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; None takes one away."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def test_whole_files_are_loaded(folder: Path, gguf: Path) -> None:
    for mode in QUANTISATIONS:
        assert refusal(folder, mode) == ""
        assert refusal(gguf, mode) == ""


# --- config.json ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", "64"),
        ("hidden_size", -64),
        ("hidden_size", 64.0),
        ("intermediate_size", None),
        ("intermediate_size", 2**40),
        ("num_attention_heads", 0),
        ("num_attention_heads", [4]),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", -2),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", True),
        ("vocab_size", None),
        ("vocab_size", 2**33),
        ("head_dim", "16"),
        ("head_dim", 0),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", 0),
        ("rope_theta", float("inf")),
        ("rope_scaling", "linear"),
        ("tie_word_embeddings", "false"),
        ("max_position_embeddings", 2**40),
        ("hidden_act", "gelu"),
        ("hidden_act", ["silu"]),
    ],
)
def test_a_field_that_cant_be_is_named(copy: Path, field: str, value: Any) -> None:
    change(copy / "config.json", **{field: value})
    line = refusal(copy)
    assert "config.json" in line
    assert field in line


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"num_key_value_heads": 3}, "4 attention heads can't share 3 KV heads"),
        ({"head_dim": 15}, "heads of 15 numbers have no pairs"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor must be a number above 0"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 4,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 32,
                }
            },
            "low_freq_factor is not below",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ from layer to layer"),
        ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window must be a whole number"),
        ({"model_type": "qwen2", "use_sliding_window": 1, "sliding_window": 8}, "use_sliding_window must be true or"),
    ],
)  # fmt: skip
def test_fields_that_dont_go_together_are_told(folder: Path, fields: dict[str, Any], problem: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(UnsupportedModel, match=re.escape(problem)):
        from_config(config | fields)


def test_no_value_of_any_field_is_more_than_a_line(copy: Path) -> None:
    """In every file that says something about the model."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        whole = (copy / name).read_text()
        for field in [*json.loads(whole), "text_config", "rope_scaling", "rope_parameters", "sliding_window"]:
            for value in JUNK:
                change(copy / name, **{field: value})
                refusal(copy)
                (copy / name).write_text(whole)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000, '{"a": 1' + "0" * 10_000 + "}", "\udcff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
def test_what_is_no_json_object_is_named(copy: Path, name: str, content: str) -> None:
    (copy / name).write_text(content, errors="surrogateescape")
    assert name in refusal(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_is_missing_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name.removeprefix("model.") in refusal(copy)
    (copy / name).symlink_to(copy / "nowhere")
    assert str(copy) in refusal(copy)


def test_absurd_token_ids_are_refused(copy: Path) -> None:
    """Masks as wide as the vocabulary would be made of them."""
    for index in (2**40, -1, "7", None, 1.5):
        document = json.loads((copy / "tokenizer.json").read_text())
        document["model"]["vocab"]["strange"] = index
        (copy / "tokenizer.json").write_text(json.dumps(document))
        assert "tokenizer.json" in refusal(copy)


@pytest.mark.parametrize("field", ["num_hidden_layers", "n_layer", "num_local_experts"])
@pytest.mark.parametrize("value", [10**9, 2**70])
def test_absurd_counts_of_other_models_are_refused_before_they_are_made(copy: Path, field: str, value: int) -> None:
    change(copy / "config.json", model_type="mixtral", **{field: value})
    with pytest.raises(UnsupportedModel, match=f"{field} must be a whole number"):
        read_hf_config(copy)


@pytest.mark.parametrize("value", [0, -1, "2", 1.5, True])
def test_other_models_have_layers(copy: Path, value: Any) -> None:
    change(copy / "config.json", model_type="gpt_neox", num_hidden_layers=value)
    with pytest.raises(UnsupportedModel, match="num_hidden_layers must be a whole number from 1"):
        read_hf_config(copy)


# --- safetensors ---


def rewritten(copy: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """Change a weight of a folder, or take it away."""
    file = copy / "model.safetensors"
    weights = load_file(file)
    weight = weights.pop(name)
    if change is not None:
        weights[name] = change(weight).contiguous()
    save_file(weights, file)


Q_PROJ, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"


@pytest.mark.parametrize("name", [Q_PROJ, NORM, "model.embed_tokens.weight"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (None, "is missing"),
        (lambda weight: weight.to(torch.int64), "stored as int64"),
        (lambda weight: weight.bool(), "stored as bool"),
        (lambda weight: weight.to(torch.float8_e4m3fn), "stored as float8_e4m3fn"),
        (lambda weight: weight[:-1], r"has shape \("),
        (lambda weight: weight[None], r"has shape \(1, "),
        (lambda weight: weight.flatten()[0], r"has shape \(\)"),
        (lambda weight: weight[:0], r"has shape \(0"),
        (lambda weight: weight * float("nan"), "not a number"),
    ],
)  # fmt: skip
def test_a_weight_that_cant_be_is_named(
    copy: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor] | None, problem: str
) -> None:
    rewritten(copy, name, change)
    for mode in ("none", "int8", "stored"):
        with pytest.raises(BadWeights, match=f"{name.removeprefix('model.')} .*{problem}|{problem}.*{name}"):
            load(copy, mode)


def test_double_and_half_precision_are_weights(copy: Path) -> None:
    rewritten(copy, Q_PROJ, lambda weight: weight.double())
    rewritten(copy, NORM, lambda weight: weight.half())
    assert refusal(copy) == ""


@pytest.mark.parametrize("part", [0, 4, 8, 20, 0.2, 0.5, 0.99, -1])
def test_safetensors_cut_short_are_named(copy: Path, part: float) -> None:
    file = copy / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, int(size * part) if 0 < part < 1 else int(part) % size)
    assert "model.safetensors can't be read" in refusal(copy)


@pytest.mark.parametrize("length", [0, 1, 2**32, 2**62, 2**64 - 1])
def test_a_header_of_absurd_length_is_refused(copy: Path, length: int) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert "model.safetensors can't be read" in refusal(copy)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("{", "can't be read as JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors is missing"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "which is no file beside it"),
        ('{"weight_map": {"a": 7}}', "which is no file beside it"),
        ('{"weight_map": {}}', "no safetensors files"),
    ],
)
def test_an_index_that_is_wrong_is_named(copy: Path, index: str, problem: str) -> None:
    (copy / "model.safetensors.index.json").write_text(index)
    assert problem in refusal(copy)


# --- GGUF ---


def patched(gguf: Path, path: Path, at: bytes, offset: int, value: bytes) -> Path:
    """A copy with bytes replaced ``offset`` behind the first place that ``at`` is found in."""
    whole = bytearray(gguf.read_bytes())
    begin = whole.index(at) + len(at) + offset
    whole[begin : begin + len(value)] = value
    path.write_bytes(whole)
    return path


def test_a_gguf_cut_anywhere_is_refused(gguf: Path, tmp_path: Path) -> None:
    whole, path = gguf.read_bytes(), tmp_path / "cut.gguf"
    data = min(info.offset for info in read_header(gguf)[1].values())
    places = [*range(64), *np.linspace(64, len(whole) - 1, 60).astype(int).tolist(), data - 1, data, data + 1]
    for keep in places:
        path.write_bytes(whole[:keep])
        assert "cut.gguf" in refusal(path) or "cut short" in refusal(path), keep


@pytest.mark.parametrize(
    "key",
    ["attention.head_count", "attention.head_count_kv", "embedding_length", "feed_forward_length", "block_count", "context_length"],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1])
def test_an_absurd_count_is_named(gguf: Path, tmp_path: Path, key: str, value: int) -> None:
    path = patched(gguf, tmp_path / "absurd.gguf", f"llama.{key}".encode(), 4, struct.pack("<I", value))
    with pytest.raises((UnsupportedModel, ModelError), match=f"{key}|context length"):
        load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_absurd_number_is_named(gguf: Path, tmp_path: Path, value: float) -> None:
    path = patched(gguf, tmp_path / "absurd.gguf", b"llama.rope.freq_base", 4, struct.pack("<f", value))
    with pytest.raises(UnsupportedModel, match=r"llama\.rope\.freq_base must be a number above 0"):
        load(path)


@pytest.mark.parametrize("shape", [(0, 32), (2**63, 32), (2**40, 2**40), (64, 31), (63, 32), (2**32 + 64, 32)])
@pytest.mark.parametrize("stored", ["attn_q", "attn_output", "ffn_down"])
def test_an_absurd_shape_is_named(gguf: Path, tmp_path: Path, stored: str, shape: tuple[int, int]) -> None:
    value = struct.pack("<QQ", *reversed(shape))
    path = patched(gguf, tmp_path / "absurd.gguf", f"blk.0.{stored}.weight".encode(), 4, value)
    for mode in ("none", "int4", "stored"):
        with pytest.raises(BadWeights, match=f"blk.0.{stored}.weight|layers.0"):
            load(path, mode)


@pytest.mark.parametrize("dimensions", [0, 1, 3, 4])
def test_a_number_of_dimensions_that_cant_be_is_refused(gguf: Path, tmp_path: Path, dimensions: int) -> None:
    for stored in ("token_embd", "blk.0.attn_k", "blk.0.ffn_up", "output_norm"):
        path = patched(gguf, tmp_path / "a.gguf", f"{stored}.weight".encode(), 0, struct.pack("<I", dimensions))
        line = refusal(path)
        assert line or (stored, dimensions) == ("output_norm", 1)


def test_rotary_divisors_that_cant_be_are_refused(folder: Path, tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType

    for divisors in (np.ones(7), np.ones((8, 1)), np.zeros(8), np.full(8, np.nan), -np.ones(8)):
        raw = divisors.astype(np.float32)
        path = tmp_path / "x.gguf"
        write_gguf(path, folder, {"rope_freqs.weight": (raw, GGMLQuantizationType.F32)})
        with pytest.raises(BadWeights, match=r"rope_freqs\.weight"):
            open_files(path)
    write_gguf(path, folder, {"rope_freqs.weight": (np.ones(8, np.float32), GGMLQuantizationType.F32)})
    assert open_files(path).factors is not None


def test_no_metadata_of_any_type_are_more_than_a_line(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, tensors = read_header(gguf)
    unusual = {f"llama.{name}": 1 for name in ("rope.scaling.type", "rope.dimension_count", "attention.sliding_window")}
    unusual |= {f"tokenizer.ggml.{name}": 1 for name in ("scores", "bos_token_id", "add_bos_token", "unknown_token_id")}
    for key in [*metadata, *unusual, "tokenizer.chat_template"]:
        for value in [*JUNK, ["a"] * 260, [1] * 260, [0.5] * 260, ["h e", "a"], [[1]]]:
            changed = {**metadata, key: value}
            monkeypatch.setattr("phloem_gpu_worker.gguf_weights.read_header", lambda _, it=changed: (it, tensors))
            for kind in ("gpt2", "llama"):
                for read in (
                    lambda: GgufSource(gguf),
                    lambda it=changed: facts_from_metadata(it, gguf),
                    lambda it={**changed, "tokenizer.ggml.model": kind}: convert(it),
                ):
                    line_of(read)


def test_layers_are_never_left_out(tmp_path: Path) -> None:
    """A model without its last ones would still speak, fluently and wrong."""
    whole, path = tmp_path / "two", tmp_path / "two.gguf"
    whole.mkdir()
    write_tiny(whole, shape=replace(SHAPE, layers=2))
    change(whole / "config.json", num_hidden_layers=1)
    write_gguf(path, whole, words=WORDS)
    for model in (whole, path):
        assert "layers.1.input_layernorm.weight belongs to none of the 1 layers" in refusal(model)


# --- Whatever happens to bytes ---


def flipped(whole: bytearray, draw: np.random.Generator) -> bytes:
    """A few bits."""
    for _ in range(int(draw.integers(1, 5))):
        whole[_place(whole, draw)] ^= 1 << int(draw.integers(8))
    return bytes(whole)


def overwritten(whole: bytearray, draw: np.random.Generator) -> bytes:
    """A number that is extreme in some type."""
    values = (0, 1, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
    value = values[int(draw.integers(len(values)))].to_bytes(8, "little")[: int(draw.choice([1, 2, 4, 8]))]
    at = _place(whole, draw)
    whole[at : at + len(value)] = value
    return bytes(whole)


def shifted(whole: bytearray, draw: np.random.Generator) -> bytes:
    """A few bytes too many or too few."""
    at, count = _place(whole, draw), int(draw.integers(1, 9))
    if draw.random() < 0.5:
        del whole[at : at + count]
    else:
        whole[at:at] = draw.bytes(count)
    return bytes(whole)


def cut(whole: bytearray, draw: np.random.Generator) -> bytes:
    return bytes(whole[: _place(whole, draw)])


def swapped(whole: bytearray, draw: np.random.Generator) -> bytes:
    """A stretch of the file in another place."""
    source, target, count = _place(whole, draw), _place(whole, draw), int(draw.integers(1, 64))
    whole[target : target + count] = whole[source : source + count]
    return bytes(whole)


def _place(whole: bytearray, draw: np.random.Generator) -> int:
    """Mostly in the first part, where everything means something."""
    return int(draw.integers(0, len(whole) if draw.random() < 0.25 else min(len(whole), 9000)))


DAMAGES: list[Damage] = [flipped, overwritten, shifted, cut, swapped]


def fuzz(file: Path, model: Path, seeds: range) -> int:
    """Damage ``file`` of ``model`` in as many ways as there are seeds; returns how many could be loaded nevertheless."""
    whole, loaded = file.read_bytes(), 0
    for seed in seeds:
        draw = np.random.default_rng(seed)
        damage = DAMAGES[seed % len(DAMAGES)]
        file.write_bytes(damage(bytearray(whole), draw))
        mode = QUANTISATIONS[seed // len(DAMAGES) % len(QUANTISATIONS)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loaded += refusal(model, mode) == ""
        except Exception as error:
            raise AssertionError(f"seed {seed}: {damage.__name__}, weights {mode}: {error!r}") from error
    return loaded


@pytest.mark.parametrize("first", [0, 1000])
def test_damaged_gguf_files_are_refused_or_loaded(gguf: Path, tmp_path: Path, first: int) -> None:
    path = tmp_path / "damaged.gguf"
    shutil.copyfile(gguf, path)
    assert 0 < fuzz(path, path, range(first, first + 300)) < 200


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer_config.json", "tokenizer.json"])
def test_damaged_folders_are_refused_or_loaded(copy: Path, name: str) -> None:
    assert fuzz(copy / name, copy, range(200)) < 200


@pytest.mark.long
def test_many_damaged_files_are_refused_or_loaded(gguf: Path, copy: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    shutil.copyfile(gguf, path)
    fuzz(path, path, range(10_000, 11_500))
    fuzz(copy / "model.safetensors", copy, range(10_000, 11_000))


# --- A process ---


def worker(server: NatsServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name == "PHLOEM_CACHE" or "PHLOEM" not in name}
    command = [
        sys.executable,
        "-m",
        "phloem_gpu_worker",
        "--nats-url",
        server.url,
        "--log-level",
        "warning",
        *arguments,
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


def no_weights(copy: Path, gguf: Path) -> Path:
    (copy / "model.safetensors").unlink()
    return copy


def a_cut_gguf(copy: Path, gguf: Path) -> Path:
    path = copy / "cut.gguf"
    path.write_bytes(gguf.read_bytes()[:-100])
    return path


def whole_numbers(copy: Path, gguf: Path) -> Path:
    rewritten(copy, Q_PROJ, lambda weight: weight.to(torch.int64))
    return copy


def no_heads(copy: Path, gguf: Path) -> Path:
    change(copy / "config.json", num_attention_heads=0)
    return copy


def cut_weights(copy: Path, gguf: Path) -> Path:
    os.truncate(copy / "model.safetensors", 5000)
    return copy


@pytest.mark.integration
@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (no_weights, r"model: has no \*\.safetensors weights"),
        (a_cut_gguf, r"cut\.gguf: weight .* is cut short"),
        (whole_numbers, r"model: weight layers\.0\.self_attn\.q_proj\.weight in model\.safetensors is stored as int64"),
        (no_heads, r"model: config\.json: num_attention_heads must be a whole number"),
        (cut_weights, r"model: model\.safetensors can't be read"),
    ],
)
def test_a_worker_says_in_one_line_what_is_wrong_with_its_model(
    broker: NatsServer, copy: Path, gguf: Path, breaking: Callable[[Path, Path], Path], said: str
) -> None:
    done = worker(broker, "--model", str(breaking(copy, gguf)))
    assert done.returncode == 1
    assert re.fullmatch(rf"error: --model \(PHLOEM_MODEL\): [^\n]*{said}[^\n]*\n", done.stderr), done.stderr
    assert done.stdout == ""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("flag", "known"),
    [("--dtype", DTYPES), ("--device", DEVICES), ("--kernels", KERNELS), ("--quantize", QUANTISATIONS)],
)
def test_an_unknown_name_lists_those_that_there_are(broker: NatsServer, flag: str, known: tuple[str, ...]) -> None:
    done = worker(broker, "--model", "tiny", flag, "int3")
    assert done.returncode == 2
    variable = "PHLOEM_" + flag[2:].upper()
    assert done.stderr == f"error: {flag} ({variable}): one of {', '.join(known)}, not 'int3'\n"
