"""From settings to a core that can work: find the files, load the model, size the pool, prepare grammars."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch

from phloem_bus.errors import ConfigError
from phloem_model import ModelError, ModelFiles, resolve
from phloem_proto.messages import Profile, WorkerProfile

from .burner import Burner
from .choices import Computing, Threads, pick_kernels, pick_pool, pick_threads, without_kernels
from .config import StandIn, WorkerConfig
from .core import Limits, WorkerCore
from .decoder import Decoder, build
from .errors import WorkerError
from .grammar_desk import GrammarDesk
from .hf_compute import HfModel
from .hf_load import load_hf
from .hf_rules import other_family
from .keys import SAMPLER_VERSION
from .load import make_runner, open_files, pick_device, pick_dtype
from .matchers import Engines
from .native import NativeDecoder, build_native
from .progress import bar
from .runner import Runner
from .stand_in import StandInRunner
from .threads import DaemonPool

_log = logging.getLogger("phloem.worker")

_BUILDERS = 2
"""Threads that build matchers: a slow compile must not hold up the next request's cheap one."""
_FILLERS = 4
"""Threads that fill masks; a grammar that never returns costs one of them until its row is failed by its lateness."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A core, and what to tell peers about it."""

    core: WorkerCore
    profile: Profile


def load(config: WorkerConfig, served_name: str, runner: Runner | None = None) -> Loaded:
    """Load what ``config`` names. Takes seconds to minutes.

    Args:
        runner: used instead of a model; then there are no grammars and no end tokens.

    Raises:
        ConfigError: the model or the device can't be used; names the setting.
    """
    if runner is None and config.stand_in is not None:
        runner = _stand_in(config, config.stand_in)
    if runner is not None:
        return _without_model(config, served_name, runner)
    try:
        files = resolve(config.model)
    except ModelError as error:
        raise ConfigError("--model", str(error), error.exit_code) from error
    try:
        runner = _load_runner(config, files)
    except WorkerError as error:
        raise ConfigError("--model", f"{files.weights}: {error}", exit_code=1) from error
    return assemble(config, served_name, runner, files, _desk(files))


def _stand_in(config: WorkerConfig, stand_in: StandIn) -> Runner:
    if not stand_in.burns:
        return StandInRunner(stand_in.step_s, page_size=config.page_size)
    threads = pick_threads(config)
    _log.info("a stand-in burns with %d threads (%s)", threads.count, threads.reason)
    return StandInRunner(0.0, Burner(stand_in.step_s, threads.count), page_size=config.page_size)


def _load_runner(config: WorkerConfig, files: ModelFiles) -> Runner:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device", "cuda is asked for, but torch sees none")
    began = time.perf_counter()
    device = pick_device(config.device)
    dtype = pick_dtype("bfloat16" if config.quantize != "none" else config.dtype, device)
    threads = pick_threads(config)
    torch.set_num_threads(threads.count)
    decoder, computing = _load_model(config, files, dtype, device, threads)
    size = pick_pool(config, decoder.arch, dtype)
    runner = make_runner(decoder, size)
    _log.info(
        "loaded %s in %.1f s: %s%s on %s with %s and %d threads (%s); KV for %d tokens in %.2f GiB (%s)",
        files.name,
        time.perf_counter() - began,
        runner.capacity.dtype,
        "" if config.quantize == "none" else f", weights {config.quantize}",
        device,
        _means(decoder, computing),
        threads.count,
        threads.reason,
        runner.capacity.pages * config.page_size,
        runner.capacity.pages * config.page_size * decoder.arch.kv_bytes_per_token * dtype.itemsize / 2 / 2**30,
        _why_so_much(config),
    )
    return runner


def _load_model(
    config: WorkerConfig, files: ModelFiles, dtype: torch.dtype, device: torch.device, threads: Threads
) -> tuple[Decoder | NativeDecoder | HfModel, Computing]:
    family = other_family(files.weights)
    if family is not None:
        computing = without_kernels(config, f"there are none for model_type {family!r}, which transformers computes")
        return load_hf(files.weights, dtype, device), computing
    opened = open_files(files.weights)
    computing = pick_kernels(config, opened.arch, dtype, device, threads)
    decoder: Decoder | NativeDecoder
    with bar(f"loading {files.name}", opened.arch.layers) as tick:
        if computing.kernels is None:
            decoder = build(opened.arch, opened.source, dtype, device, opened.factors, tick)
        else:
            decoder = build_native(
                opened.arch, opened.source, dtype, computing.kernels, opened.factors, config.quantize, tick
            )
    if computing.kernels is None and computing.reason != "--kernels torch" and device.type == "cpu":
        _log.warning("torch computes, which is slower: %s", computing.reason)
    return decoder, computing


def _means(decoder: Decoder | NativeDecoder | HfModel, computing: Computing) -> str:
    """Who computes."""
    if isinstance(decoder, HfModel):
        return f"torch through transformers (model_type {decoder.family})"
    return "torch" if computing.kernels is None else f"{computing.kernels.level} kernels"


def _why_so_much(config: WorkerConfig) -> str:
    """Where the size of the pool comes from."""
    if config.kv_tokens:
        return "--kv-tokens"
    return "--kv-memory-gb" if config.kv_memory_gb else "half of what is free, at most what the default rows use"


def _desk(files: ModelFiles) -> GrammarDesk:
    engines = Engines(files.tokenizer_json, files.vocab_size, files.eos_ids)
    return GrammarDesk(
        engines.matcher,
        mask_words(files),
        DaemonPool("phloem-matcher", _BUILDERS),
        DaemonPool("phloem-mask", _FILLERS),
        time.thread_time,
    )


def mask_words(files: ModelFiles) -> int:
    """int32 words of a grammar's mask."""
    return -(-files.vocab_size // 32)


def assemble(config: WorkerConfig, served_name: str, runner: Runner, files: ModelFiles, desk: GrammarDesk) -> Loaded:
    """A core of these parts, with the context that all of them allow."""
    context = min(files.context_length, runner.capacity.context_length)
    if config.max_context:
        context = min(context, config.max_context)
    core = WorkerCore(runner, Limits(config.max_rows, config.max_step_tokens), files.eos_ids, context, desk)
    profile = Profile(
        model=served_name,
        model_digest=files.model_digest,
        tokenizer_digest=files.tokenizer_digest,
        sampler=SAMPLER_VERSION,
        worker=_worker_profile(core, context, files.eos_ids),
        context_length=context,
        vocab_size=runner.capacity.vocab_size,
    )
    return Loaded(core, profile)


def _without_model(config: WorkerConfig, served_name: str, runner: Runner) -> Loaded:
    context = runner.capacity.context_length
    core = WorkerCore(runner, Limits(config.max_rows, config.max_step_tokens), (), context, None)
    profile = Profile(
        model=served_name,
        sampler=SAMPLER_VERSION,
        worker=_worker_profile(core, context, ()),
        context_length=context,
        vocab_size=runner.capacity.vocab_size,
    )
    return Loaded(core, profile)


def _worker_profile(core: WorkerCore, context: int, eos_ids: tuple[int, ...]) -> WorkerProfile:
    capacity = core.runner.capacity
    return WorkerProfile(
        page_size=capacity.page_size,
        pages=capacity.pages,
        slots=core.limits.slots,
        max_step_tokens=core.limits.max_step_tokens,
        context_length=context,
        vocab_size=capacity.vocab_size,
        eos_ids=eos_ids,
        dtype=capacity.dtype,
        device=capacity.device,
    )
