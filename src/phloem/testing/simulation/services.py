"""The five services as a simulation runs them: everything is real but the device, the threads and the sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from phloem_gateway.config import GatewayConfig
from phloem_gateway.service import GatewayService
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.device import OffloadDevice
from phloem_gpu_worker.grammar_desk import GrammarDesk
from phloem_gpu_worker.matchers import Engines
from phloem_gpu_worker.service import WorkerService
from phloem_gpu_worker.startup import Loaded, assemble, mask_words
from phloem_grammar.config import GrammarConfig
from phloem_grammar.service import GrammarService
from phloem_model import ModelFiles, resolve
from phloem_proto.messages import Grammar
from phloem_scheduler.config import SchedulerConfig
from phloem_scheduler.service import SchedulerService
from phloem_tokenizer.config import TokenizerConfig
from phloem_tokenizer.service import TokenizerService

from .model import HashRunner
from .scenario import Machine

T = TypeVar("T")

CONTEXT = 512


@cache
def files() -> ModelFiles:
    """The tiny model's tokenizer is real; its weights are not used."""
    return resolve("tiny")


@cache
def engines() -> Engines:
    """Grammar engines, shared: they only build matchers."""
    return Engines(files().tokenizer_json, files().vocab_size, files().eos_ids)


def at_once(work: Callable[[], T]) -> Future[T]:
    """A pool that does everything at once."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # whoever asks for the result gets it
        future.set_exception(error)
    return future


class CountingDesk(GrammarDesk):
    """Counts constrained sequences that come with output: they began elsewhere, or were retracted."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__(engines().matcher, mask_words(files()), at_once, at_once, lambda: 0.0)
        self._seen = seen

    def open(self, slot: int, grammar: Grammar, held: list[int]) -> None:
        self._seen["constrained request resumed"] += bool(held)
        super().open(slot, grammar, held)


def maker(role: str, machine: Machine, seen: Counter[str]) -> Callable[[], Any]:
    """What makes a service of ``role`` for each start of a process. ``seen`` counts what is worth knowing of a run."""
    match role:
        case "gateway":
            return lambda: GatewayService(GatewayConfig(http_port=None, grpc_port=None))
        case "tokenizer":
            return lambda: TokenizerService(TokenizerConfig(model="tiny"))
        case "scheduler":
            config = SchedulerConfig(
                policy=machine.policy,
                depth=machine.depth,
                max_queued=machine.max_queued,
                chunk_tokens=machine.chunk_tokens,
                reserve=machine.reserve,
            )
            return lambda: SchedulerService(config)
        case "worker":
            return lambda: _worker(machine, seen)
        case "grammar":
            return lambda: GrammarService(GrammarConfig(model="tiny", sandbox=False))
    raise ValueError(role)


def _worker(machine: Machine, seen: Counter[str]) -> WorkerService:
    def load(config: WorkerConfig, name: str) -> Loaded:
        runner = HashRunner(
            pages=machine.pages,
            page_size=machine.page_size,
            context_length=CONTEXT,
            vocab_size=files().vocab_size,
            asynchronous=machine.asynchronous,
        )
        return assemble(config, name, runner, files(), CountingDesk(seen))

    config = WorkerConfig(
        model="tiny", page_size=machine.page_size, max_rows=machine.rows, max_step_tokens=256, max_context=CONTEXT
    )
    return WorkerService(config, loader=load, make_device=lambda core, ctx: OffloadDevice(core, ctx.offload))
