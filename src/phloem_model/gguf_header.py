"""Read the head of a GGUF file: its metadata, and where its tensors lie. Nothing of the tensors themselves.

Own code instead of the `gguf` package: a service that holds no weights needs no numpy, and the package's reader takes seconds for the
texts of a vocabulary, each of which it keeps as arrays. Every length in the file is checked against the file's size before it is believed.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from phloem_model.errors import ModelBroken, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536  # real files have some 30 to 60
MAX_TENSORS = 1 << 20
MAX_DIMENSIONS = 4
ALIGNMENT = 32  # of tensors, where the metadata name no other
MAX_NESTING = 4  # arrays of arrays; real files have one level

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies."""

    shape: tuple[int, ...]  # outermost first, as in numpy; the file has it the other way round
    kind: int  # ggml's number of its element type
    offset: int  # in bytes, from the start of the file

    @property
    def elements(self) -> int:
        return prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """The metadata of a GGUF file, as `read_metadata` gives them, and its tensors by name, in the file's order.

    Raises ModelBroken when the file cannot be read or is not a whole GGUF header. Whether the tensors are whole is not looked at: that
    takes the sizes of their types.
    """
    return _read(path, _Cursor.header)


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file (version 2 or 3, little-endian): str, int, float, bool, and lists of them.

    Raises ModelBroken when the file cannot be read or is not a whole GGUF header.
    """
    return _read(path, _Cursor.metadata)


def _read(path: Path, part: "Callable[[_Cursor], R]") -> R:
    try:
        with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return part(_Cursor(data, path))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelBroken(path, f"cannot be read ({error})") from error


class _Cursor:
    """A position in the mapped file; each method reads one thing and moves on."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0
        self._tensor_count = 0
        self._readers: dict[int, Callable[[], Any]] = {
            kind: self._scalar_reader(struct.Struct(form)) for kind, form in _SCALARS.items()
        }
        self._readers[_STRING] = self._string

    def metadata(self) -> dict[str, Any]:
        if self._take(4) != MAGIC:
            raise ModelBroken(self._path, "is not a GGUF file")
        version = self._readers[4]()
        if version not in VERSIONS:
            raise ModelBroken(self._path, f"has GGUF version {version}, known are {VERSIONS}")
        self._tensor_count = self._readers[10]()
        count = self._readers[10]()
        if count > MAX_KEYS:
            raise ModelBroken(self._path, f"claims {count} metadata keys")
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            result[key] = self._value(self._readers[4](), 0)
        return result

    def header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        metadata = self.metadata()
        if self._tensor_count > MAX_TENSORS:
            raise ModelBroken(self._path, f"claims {self._tensor_count} tensors")
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelBroken(self._path, f"has tensors aligned to {shown(alignment)}, which is no power of two")
        found: dict[str, TensorInfo] = {}
        for _ in range(self._tensor_count):
            name = self._string()
            if name in found:
                raise ModelBroken(self._path, f"has two tensors {shown(name)}")
            found[name] = self._tensor()
        start = -(-self._at // alignment) * alignment
        return metadata, {name: replace(info, offset=start + info.offset) for name, info in found.items()}

    def _tensor(self) -> TensorInfo:
        dimensions = self._readers[4]()
        if dimensions > MAX_DIMENSIONS:
            raise ModelBroken(self._path, f"has a tensor of {dimensions} dimensions")
        inner_first = [self._readers[10]() for _ in range(dimensions)]
        return TensorInfo(tuple(reversed(inner_first)), kind=self._readers[4](), offset=self._readers[10]())

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _ARRAY:
            return self._array(depth)
        reader = self._readers.get(kind)
        if reader is None:
            raise ModelBroken(self._path, f"has a metadata value of unknown type {kind}")
        return reader()

    def _array(self, depth: int) -> list[Any]:
        if depth == MAX_NESTING:
            raise ModelBroken(self._path, "nests metadata arrays too deeply")
        kind = self._readers[4]()
        count = self._readers[10]()
        form = _SCALARS.get(kind)
        if form is not None:  # the long ones (scores, token types) in one call
            return list(struct.unpack(f"<{count}{form[1]}", self._take(count * struct.calcsize(form))))
        if count > len(self._data) - self._at:  # each element takes at least a byte
            raise self._cut_short()
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _string(self) -> str:
        try:
            return self._take(self._readers[10]()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelBroken(self._path, "has metadata text that is not UTF-8") from error

    def _scalar_reader(self, form: struct.Struct) -> Callable[[], Any]:
        return lambda: form.unpack(self._take(form.size))[0]

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise self._cut_short()
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _cut_short(self) -> ModelBroken:
        return ModelBroken(self._path, "is cut short inside its metadata")
