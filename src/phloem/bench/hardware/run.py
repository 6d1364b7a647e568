"""Measure the machine and the worker on it, in rounds: whatever else it does then, it does to both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from phloem_gpu_worker.architecture import Architecture
from phloem_gpu_worker.choices import Threads, pick_kernels, pick_threads
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.kernels.team import Kernels
from phloem_gpu_worker.load import load_decoder, load_native, open_files, pick_dtype
from phloem_model import resolve

from .bed import Bed, prompt_flops
from .figures import DECODE, PREFILL, Limits, Row, Sample, middle, rows_of
from .limits import Memory, Products
from .neighbours import Neighbours
from .plan import HardwarePlan

CPU = torch.device("cpu")
SHAPE_ROWS = 512
"""Rows of the products in the model's own shapes."""


class NotMeasurable(Exception):
    """Raised when there are no compiled kernels for the model here; says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a model's files and who computes them."""

    weights: Path
    name: str
    arch: Architecture
    dtype: torch.dtype
    kernels: Kernels
    threads: Threads


@dataclass(slots=True)
class HardwareOutcome:
    """Everything that was measured."""

    model: str
    dtype: str
    level: str
    threads: int
    weight_bytes: dict[str, int] = field(default_factory=dict)
    """What a decode step reads, by quantisation."""
    samples: list[Sample] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    others: float | None = None
    """Cores' worth of time that others used meanwhile; None = nobody says."""

    @property
    def rows(self) -> list[Row]:
        """Medians over rounds."""
        return rows_of(self.samples)

    @property
    def limit(self) -> Limits:
        """Medians over all rounds."""
        return middle(self.limits)


def turns(plan: HardwarePlan) -> int:
    """How often `hardware` calls ``on_step``."""
    return len(plan.quantize) * (plan.rounds + 1)


def hardware(plan: HardwarePlan, on_step: Callable[[str], None] = lambda name: None) -> HardwareOutcome:
    """Measure everything. on_step: told what comes next.

    Raises:
        NotMeasurable: there are no kernels.
        ModelError, WorkerError: the model can't be had, or not in one of these quantisations.
        ConfigError: a setting can't be used.
    """
    with _subject(plan) as subject:
        dtype = str(subject.dtype).removeprefix("torch.")
        outcome = HardwareOutcome(subject.name, dtype, subject.kernels.level, subject.threads.count)
        memory = Memory(plan.buffer_mb << 20)
        products = Products(subject.arch, subject.dtype, subject.kernels, plan.square, SHAPE_ROWS)
        neighbours = Neighbours()
        with closing(Bed(load_decoder(subject.weights, subject.dtype, CPU), plan)) as theirs:
            for quantize in plan.quantize:
                on_step(f"{quantize}: loading")
                decoder = load_native(subject.weights, subject.dtype, subject.kernels, quantize)
                outcome.weight_bytes[quantize] = decoder.weight_bytes
                with closing(Bed(decoder, plan)) as ours:
                    one = _Pair(plan, subject.arch, quantize, decoder.weight_bytes, ours, theirs)
                    one.warm_up()
                    for number in range(plan.rounds):
                        on_step(f"{quantize}: round {number + 1}")
                        limits = _limits(plan, memory, products)
                        outcome.limits.append(limits)
                        outcome.samples += one.samples(limits)
                del decoder
        outcome.others = neighbours.cores()
    return outcome


def _limits(plan: HardwarePlan, memory: Memory, products: Products) -> Limits:
    return Limits(memory.rates(plan.tries), products.rates(plan.tries), products.own_rate(plan.tries))


@contextmanager
def _subject(plan: HardwarePlan) -> Iterator[Subject]:
    """Raises as `hardware`."""
    files = resolve(plan.model)
    config = WorkerConfig(model=plan.model, threads=plan.threads)
    opened = open_files(files.weights)
    dtype = pick_dtype(config.dtype, CPU)
    threads = pick_threads(config)
    computing = pick_kernels(config, opened.arch, dtype, CPU, threads)
    if computing.kernels is None:
        raise NotMeasurable(f"there are no compiled kernels to measure: {computing.reason}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads.count)
    try:
        yield Subject(files.weights, files.name, opened.arch, dtype, computing.kernels, threads)
    finally:
        torch.set_num_threads(before)
        computing.kernels.close()


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same steps by the kernels and by torch, in turn."""

    plan: HardwarePlan
    arch: Architecture
    quantize: str
    weight_bytes: int
    ours: Bed
    theirs: Bed

    def warm_up(self) -> None:
        """Once through the largest of each, so that memory is there and threads are awake."""
        for bed in (self.ours, self.theirs):
            bed.prefill(max(self.plan.prompts))
            bed.decode(max(self.plan.rows))

    def samples(self, limits: Limits) -> Iterator[Sample]:
        for rows in self.plan.rows:
            yield self._sample(DECODE, rows, self.weight_bytes, limits)
        for tokens in self.plan.prompts:
            yield self._sample(PREFILL, tokens, prompt_flops(self.arch, tokens), limits)

    def _sample(self, kind: str, size: int, work: int, limits: Limits) -> Sample:
        ours, theirs = (self._step_s(bed, kind, size) for bed in (self.ours, self.theirs))
        return Sample(self.quantize, kind, size, work, ours, theirs, limits)

    def _step_s(self, bed: Bed, kind: str, size: int) -> float:
        step = bed.decode if kind == DECODE else bed.prefill
        return median(step(size) for _ in range(self.plan.tries))
