"""Where weights come from: one small interface, and its safetensors form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phloem_model.errors import shown

from .errors import BadWeights
from .grouped import Grouped

_INDEX = "model.safetensors.index.json"
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What weights may be stored in. Whole numbers and eight-bit floats are parts of quantisations that need more than the weight itself."""


class WeightSource(Protocol):
    """A model's weights by their canonical names (Hugging Face's, without the leading ``model.``)."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> Tensor:
        """The weight, in whatever dtype it is stored or dequantised to. Raises `BadWeights` if there is none."""
        ...

    def quantised(self, name: str) -> bool:
        """Whether the weight, which there is, is stored in fewer bits than numbers have."""
        ...

    def grouped(self, name: str) -> Grouped | None:
        """The weight as it is stored, if that is in groups of 32 with 4 or 8 bits."""
        ...


class SafetensorsSource:
    """A folder of ``*.safetensors``, sharded or not. Files stay open (memory-mapped) as long as this object lives.

    Raises:
        BadWeights: there are no files, one is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._open: dict[Path, Any] = {file: _opened(file) for file in _files(folder)}
        self._names = {
            _canonical(name): (file, name) for file, tensors in self._open.items() for name in _keys(tensors)
        }

    def names(self) -> list[str]:
        """Canonical names of all weights."""
        return list(self._names)

    def has(self, name: str) -> bool:
        return name in self._names

    def get(self, name: str) -> Tensor:
        if name not in self._names:
            raise BadWeights(f"weight {name} is missing")
        file, stored = self._names[name]
        try:
            tensor: Tensor = self._open[file].get_tensor(stored)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise BadWeights(f"weight {name} in {file.name} can't be read: {_line(error)}") from None
        if tensor.dtype not in _NUMBERS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise BadWeights(f"weight {name} in {file.name} is stored as {dtype}, which is no floating-point weight")
        return tensor

    def quantised(self, name: str) -> bool:
        return False

    def grouped(self, name: str) -> Grouped | None:
        return None


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise BadWeights(f"{file.name} can't be read: {_line(error)}") from None


def _line(error: Exception) -> str:
    """What a library said, on one line."""
    return " ".join(str(error).split())[:200]


def _keys(tensors: Any) -> list[str]:
    """A safetensors handle has ``keys()`` but can't be iterated."""
    keys: list[str] = tensors.keys()
    return keys


def _files(folder: Path) -> list[Path]:
    """The files the index names, or all of them. Raises `BadWeights` if there are none."""
    index = folder / _INDEX
    files = [folder / name for name in _named_by(index)] if index.exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadWeights("the model's folder has no safetensors files")
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise BadWeights(f"{missing.name} is missing, though {_INDEX} names it")
    return files


def _named_by(index: Path) -> list[str]:
    """Names of the files in an index, each once. They are files beside it."""
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadWeights(f"{_INDEX} can't be read as JSON: {_line(error)}") from None
    shards = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(shards, dict):
        raise BadWeights(f"{_INDEX} has no weight_map")
    names = list(shards.values())
    strange = next((name for name in names if not isinstance(name, str) or name != Path(name).name), None)
    if strange is not None:
        raise BadWeights(f"{_INDEX} names {shown(strange)}, which is no file beside it")
    return sorted(set(names))


def _canonical(name: str) -> str:
    return name.removeprefix("model.")
