"""Let a model read a text with its weights held in each way, and continue it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from phloem_gpu_worker.choices import pick_kernels, pick_threads
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.decoder import Decoder
from phloem_gpu_worker.kernels.team import Kernels
from phloem_gpu_worker.load import load_decoder, load_native, open_files
from phloem_gpu_worker.native import NativeDecoder
from phloem_model import ModelFiles, resolve

from .figures import PLAIN, REFERENCE, Reading, until_first_difference
from .plan import QualityPlan
from .reader import Reader
from .sample import Sample, sample

CPU = torch.device("cpu")


class NotMeasurable(Exception):
    """Raised when there are no compiled kernels for the model here, or its context is too short; says why."""


@dataclass(slots=True)
class QualityOutcome:
    """Everything that was measured."""

    model: str
    level: str
    """Of the kernels."""
    windows: int
    tokens: int
    """Of the text, that were predicted."""
    readings: list[Reading] = field(default_factory=list)
    """The reference first."""


def modes(plan: QualityPlan, files: ModelFiles) -> list[str]:
    """What is measured, in this order. Only a GGUF has weights that are stored quantised."""
    wanted = [mode for mode in plan.quantize if mode != "stored" or files.weights.suffix == ".gguf"]
    return list(dict.fromkeys((REFERENCE, PLAIN, *wanted)))


def quality(plan: QualityPlan, on_step: Callable[[str, int, int], None] = lambda name, at, of: None) -> QualityOutcome:
    """Measure everything. on_step: told what comes next, as the how-manieth of how many.

    Raises:
        NotMeasurable: there are no kernels, or sequences of the plan don't fit the model's context.
        ModelError, WorkerError: the model can't be had, or not in one of these quantisations.
        ConfigError: a setting can't be used.
    """
    files = resolve(plan.model)
    with _kernels(plan, files) as kernels:
        given = sample(plan, files)
        predicted = sum(len(window) - 1 for window in given.windows)
        outcome = QualityOutcome(files.name, kernels.level, len(given.windows), predicted)
        wanted, reference = modes(plan, files), None
        for at, mode in enumerate(wanted):
            on_step(mode, at, len(wanted))
            decoder = _decoder(files, kernels, mode)
            with closing(Reader(decoder, plan)) as reader:
                found = reader.continued(given.prompts, plan.tokens)
                reference = reference or found
                outcome.readings.append(_reading(mode, decoder, reader, given, found, reference))
            del decoder, reader  # the next one's weights take the place of this one's
    return outcome


def _decoder(files: ModelFiles, kernels: Kernels, mode: str) -> Decoder | NativeDecoder:
    if mode == REFERENCE:
        return load_decoder(files.weights, torch.float32, CPU)
    return load_native(files.weights, torch.bfloat16, kernels, mode)


def _reading(
    mode: str,
    decoder: Decoder | NativeDecoder,
    reader: Reader,
    given: Sample,
    found: list[list[int]],
    reference: list[list[int]],
) -> Reading:
    logprobs = np.concatenate([reader.scores(window).logprobs for window in given.windows])
    choices = [
        reader.scores(prompt + continuation).top_ids[len(prompt) - 1 :, 0]
        for prompt, continuation in zip(given.prompts, reference, strict=True)
    ]
    equal = [until_first_difference(*pair) for pair in zip(found, reference, strict=True)]
    return Reading(
        mode,
        decoder.weight_bytes if isinstance(decoder, NativeDecoder) else None,
        float(logprobs.mean(dtype=np.float64)),
        float(np.mean(equal)) / len(reference[0]),
        float(np.mean(np.stack(choices) == np.array(reference))),
    )


@contextmanager
def _kernels(plan: QualityPlan, files: ModelFiles) -> Iterator[Kernels]:
    """Raises as `quality`."""
    config = WorkerConfig(model=plan.model, threads=plan.threads)
    arch = open_files(files.weights).arch
    most = plan.pages * plan.page_size
    if most > arch.context_length:
        raise NotMeasurable(
            f"the model's context holds {arch.context_length} tokens, the plan's sequences up to {most}"
        )
    threads = pick_threads(config)
    computing = pick_kernels(config, arch, torch.bfloat16, CPU, threads)
    if computing.kernels is None:
        raise NotMeasurable(f"there are no compiled kernels to measure: {computing.reason}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads.count)
    try:
        yield computing.kernels
    finally:
        torch.set_num_threads(before)
        computing.kernels.close()
