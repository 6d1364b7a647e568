"""Memory for weights and KV: whole, apart from each other, and given back."""

from __future__ import annotations

import gc
import random
import resource
from pathlib import Path

import pytest
import torch

from phloem_gpu_worker.kernels.ahead import Ahead
from phloem_gpu_worker.kernels.memory import HUGE, LINE, SHARED, Buffers, aligned

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_tensors_of_any_size_are_zeros_on_cache_lines_and_never_overlap() -> None:
    rng = random.Random(3)
    made = []
    for number in range(1, 120):
        size = rng.choice([0, 1, 63, 64, 65, rng.randrange(HUGE), SHARED // 4 - 1, SHARED // 4, SHARED // 4 + 1])
        tensor = aligned((size,), torch.uint8)
        assert tensor.shape == (size,)
        assert size == 0 or tensor.data_ptr() % LINE == 0
        assert not tensor[:: max(1, size // 50)].any()
        tensor[:1], tensor[-1:] = number, number
        made.append(tensor)
    for number, tensor in enumerate(made, 1):
        assert set(tensor[:1].tolist() + tensor[-1:].tolist()) <= {number}


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1), (2, 0, 4)])
def test_shape_and_type_are_what_was_asked_for(shape: tuple[int, ...]) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.int8, torch.int16):
        tensor = aligned(shape, dtype)
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        tensor.fill_(3)
        assert bool((tensor == 3).all())


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_is_not_written_takes_no_memory_and_what_is_dropped_is_given_back() -> None:
    before, size = resident(), 256 * 2**20
    tensor = aligned((size,), torch.uint8)
    assert resident() < before + size // 4
    tensor.fill_(1)
    assert resident() > before + size * 3 // 4
    del tensor
    gc.collect()
    assert resident() < before + size // 4


def test_memory_is_used_again_only_when_no_view_of_it_is_left() -> None:
    buffers = Buffers()
    first = buffers.take((100, 7), torch.float32)
    address, view = first.data_ptr(), first[3:5]
    view.fill_(5)
    del first
    second = buffers.take((100, 7), torch.float32)
    second.fill_(1)
    assert second.data_ptr() != address
    assert bool((view == 5).all())
    del view
    third = buffers.take((90, 7), torch.bfloat16)
    assert third.data_ptr() == address
    assert (third.shape, third.dtype) == ((90, 7), torch.bfloat16)


def is_of_one_value(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.flatten()[:1].sum()).all())


def test_buffers_grow_with_what_is_asked_for_and_keep_few() -> None:
    buffers, rng = Buffers(), random.Random(4)
    held: list[torch.Tensor] = []
    for number in range(300):
        shape = (rng.randrange(50), rng.randrange(300))
        tensor = buffers.take(shape, torch.float32)
        assert tensor.shape == shape
        tensor.fill_(number)
        held.append(tensor)
        if rng.random() < 0.6:
            kept = held.pop(rng.randrange(len(held)))
            assert is_of_one_value(kept)
            del kept
        assert len(buffers._free) <= Buffers.MOST_FREE
    assert all(map(is_of_one_value, held))


def test_what_cant_be_had_is_told_with_its_size() -> None:
    with pytest.raises(MemoryError, match="9,007,199,254,740,992 bytes"):
        aligned((2**53,), torch.uint8)


def huge() -> int:
    """Bytes of this process that lie in huge pages."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["AnonHugePages"].split()[0]) * 1024


@pytest.mark.skipif("[never]" in THP.read_text() if THP.exists() else True, reason="this system has no huge pages")
def test_small_tensors_lie_in_huge_pages_together() -> None:
    before = huge()
    made = [aligned((HUGE + HUGE // 2,), torch.uint8).fill_(1) for _ in range(64)]
    assert huge() >= before + 0.7 * sum(map(len, made))


def faults() -> int:
    """Pages that the system has given this process when it wrote to them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("pages", [7, 3000])
def test_a_pool_is_ready_before_it_is_written_to(pages: int) -> None:
    pool = aligned((4, pages, 1024), torch.bfloat16)
    ahead = Ahead(list(pool), pages)
    ahead.wait()
    taken = 0
    for page in range(pages):
        ahead.used(page)
        ahead.wait()
        before = faults()
        for head in pool:
            head[page] = 1
        taken += faults() - before
    assert taken <= pages // 20  # 2,000 bytes each: without huge pages 2 of 4 pages would come with a fault
    assert bool((pool == 1).all())


def test_a_page_far_ahead_of_all_others_is_ready_soon_and_none_beyond_the_pool() -> None:
    beside = aligned((2**20,), torch.uint8)
    pool = aligned((2, 5000, 1024), torch.bfloat16)
    ahead = Ahead(list(pool), 5000)
    for page in (4000, 4999, 4999):
        ahead.wait()  # what is used while the pool's beginning is still being zeroed asks for nothing
        ahead.used(page)
    ahead.wait()
    before = faults()
    pool[:, 4000:] = 1
    assert faults() - before < 100
    assert not beside.any()
