"""Where weights come from: one small interface, and its safetensors form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from .errors import BadWeights
from .grouped import Grouped


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
    """A folder of ``*.safetensors``, sharded or not. Files stay open (memory-mapped) as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        self._open: dict[Path, Any] = {file: safe_open(file, framework="pt") for file in _files(folder)}
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
        tensor: Tensor = self._open[file].get_tensor(stored)
        return tensor

    def quantised(self, name: str) -> bool:
        return False

    def grouped(self, name: str) -> Grouped | None:
        return None


def _keys(tensors: Any) -> list[str]:
    """A safetensors handle has ``keys()`` but can't be iterated."""
    keys: list[str] = tensors.keys()
    return keys


def _files(folder: Path) -> list[Path]:
    """The files the index names, or all of them. Raises `BadWeights` if there are none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(shards))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files or not all(file.exists() for file in files):
        raise BadWeights("the model's folder has no safetensors files, or lacks one that its index names")
    return files


def _canonical(name: str) -> str:
    return name.removeprefix("model.")
