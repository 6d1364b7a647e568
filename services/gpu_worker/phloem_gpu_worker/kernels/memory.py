"""Memory as the kernels like it: on the bounds of cache lines, in huge pages where the system has them.

A decode step reads all weights once, faster than a core can look up pages of 4 KB: from huge ones, one core of the machine this was
written on read 26 GB/s instead of 10. So small tensors share large mappings, since a huge page can't begin or end within a tensor of its own.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line."""
HUGE = 2 * 2**20
"""Bytes of a huge page of most CPUs."""
SHARED = 16 * HUGE
"""Bytes of a mapping that tensors of less than a quarter of it share."""


class _Mapping:
    """Zeros, handed out from one end to the other. It lives as long as a tensor in it does."""

    def __init__(self, size: int) -> None:
        try:
            memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{size:,} bytes can't be had: {error}") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without them
        bytes_ = torch.frombuffer(memory, dtype=torch.uint8)
        begin = -bytes_.data_ptr() % HUGE
        self._bytes = bytes_[begin : begin + size]
        self._used = 0

    def take(self, size: int) -> Tensor | None:
        """uint8 [size], or None if there is no room."""
        begin = self._used
        if begin + size > len(self._bytes):
            return None
        self._used = begin + -(-size // LINE) * LINE
        return self._bytes[begin : begin + size]


_lock = threading.Lock()
_shared: _Mapping | None = None


def aligned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros that begins on a cache line. It takes real memory only as far as it is written.

    Raises:
        MemoryError: there is not so much.
    """
    global _shared
    size = math.prod(shape) * dtype.itemsize
    with _lock:
        if size >= SHARED // 4:
            taken = _Mapping(size).take(size)
        elif _shared is None or (taken := _shared.take(size)) is None:
            _shared = _Mapping(SHARED)
            taken = _shared.take(size)
    assert taken is not None
    return taken.view(dtype).view(shape)


class Buffers:
    """Tensors whose memory is used again as soon as nobody has them any more.

    A step's logits take megabytes, which the system would hand out page by page, zeroed, and take back, with every step.
    """

    MOST_FREE = 2
    """Kept while nobody uses them: a step's own, and that of prompt log-probabilities before it."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of anything. Raises `MemoryError` if there is not so much."""
        size = math.prod(shape) * dtype.itemsize
        memory = self._free.pop() if self._free else None
        if memory is None or len(memory) < size:
            memory = aligned((1 << max(size - 1, 0).bit_length(),), torch.uint8)
        # A tensor keeps the array that it was made from, and so do its views: when the array goes, all of them are gone.
        array = memory.numpy()[:size]
        weakref.finalize(array, self._give_back, memory).atexit = False
        return torch.from_numpy(array).view(dtype).view(shape)

    def _give_back(self, memory: Tensor) -> None:
        if len(self._free) < self.MOST_FREE:
            self._free.append(memory)
