"""Cores over tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from phloem_gpu_worker.core import Limits, WorkerCore
from phloem_gpu_worker.grammar_desk import Budget, GrammarDesk
from phloem_gpu_worker.load import PoolSize, load_decoder, make_runner
from phloem_gpu_worker.matchers import Matcher
from phloem_gpu_worker.threads import Submit, run_inline
from phloem_proto.messages import Grammar

from .tiny_models import VOCAB

EOS = (5,)


def core_of(
    folder: Path, *, page_size: int = 16, tokens: int = 2048, desk: GrammarDesk | None = None, context: int = 512
) -> WorkerCore:
    """A float32 core over a saved model."""
    decoder = load_decoder(folder, torch.float32, torch.device("cpu"))
    return WorkerCore(make_runner(decoder, PoolSize(page_size, tokens)), Limits(slots=16), EOS, context, desk)


def desk_of(
    build: Callable[[Grammar], Matcher],
    *,
    vocab: int = VOCAB,
    builders: Submit = run_inline,
    fillers: Submit = run_inline,
    cpu_s: Callable[[], float] = lambda: 0.0,
    **settings: Any,
) -> GrammarDesk:
    """A desk that does everything at once unless told otherwise."""
    budget = Budget(**settings) if settings else None
    return GrammarDesk(build, -(-vocab // 32), builders, fillers, cpu_s, budget, grace_s=0.0)
