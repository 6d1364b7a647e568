"""The attention of models that ``transformers`` computes: each of their layers calls back here.

A model's attention modules look up a function by the name in their configuration. Two names are registered: under `SERVING` the model builds
no masks at all; under `TRYING` it builds those that differ from the causal one, so that whoever uses one is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttendLayer
from .errors import UnsupportedModel
from .kv_pool import KvPool

SERVING = "phloem"
TRYING = "phloem-trying"
_HARMLESS = frozenset({"dropout", "position_ids"})
"""Arguments that change nothing here: dropout is for training, and positions are in q and k already."""


class Pass(Protocol):
    """A forward pass: what its attentions do, one after the other."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q [T, heads, D], k [T, kv_heads, D], v [T, kv_heads, E] -> [T, heads, E]."""
        ...


_PASS: ContextVar[Pass] = ContextVar("forward pass")


@contextmanager
def attending(to: Pass) -> Iterator[None]:
    """Within it, attentions of models that this thread runs are those of one forward pass."""
    token = _PASS.set(to)
    try:
        yield
    finally:
        _PASS.reset(token)


class Outlook:
    """Notes what a model's attentions ask for, and answers with zeros: how large a pool's entries must be."""

    def __init__(self) -> None:
        self.kv_heads: list[int] = []
        """Of each attention, in the order of their calls."""
        self.widths: list[int] = []
        """The larger of a key's and a value's size, of each attention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See `Pass.attend`."""
        self.kv_heads.append(k.shape[1])
        self.widths.append(max(k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:2], v.shape[2])


class PoolPass:
    """Attention over a paged pool. The n-th call of a pass has the pool's n-th layer, whatever the model calls it.

    Keys and values narrower than the pool's are filled up with zeros, which changes no score, and the output is cut again.
    """

    def __init__(self, pool: KvPool, at: Tensor, attend_layer: AttendLayer) -> None:
        self._pool = pool
        self._at = at
        self._attend_layer = attend_layer
        self._layer = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See `Pass.attend`; k and v of all rows are stored before any is read."""
        layer, pool = self._layer, self._pool.keys[self._layer]
        self._layer += 1
        q_wide, k_wide, v_wide = (_fitted(part, pool) for part in (q, k, v))
        self._pool.store(layer, self._at, k_wide, v_wide)
        output = self._attend_layer(layer, q_wide, scale).view(q_wide.shape)
        return output[..., : v.shape[-1]].to(q.dtype)


def _fitted(part: Tensor, pool: Tensor) -> Tensor:
    """``part`` [T, heads, D] as wide as the pool's entries, in their dtype."""
    missing = pool.shape[-1] - part.shape[-1]
    return (F.pad(part, (0, missing)) if missing else part).to(pool.dtype)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What ``transformers`` calls: q, k, v [1, heads, T, D] -> [1, T, heads, D] and no weights.

    Raises:
        UnsupportedModel: more is asked for than causal attention.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal:
        raise UnsupportedModel("it attends to what comes later")
    strange = next((name for name, given in others.items() if name not in _HARMLESS and _means(given)), None)
    if strange is not None:
        raise UnsupportedModel(f"its attention needs {strange!r}")
    if attention_mask is not None:
        raise UnsupportedModel("it attends through a mask other than the causal one")
    q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return _PASS.get().attend(q, k, v, scale).unsqueeze(0), None


def _means(given: Any) -> bool:
    """Whether an argument is more than a switch that is off."""
    return given is not None and given is not False


def _odd_masks(build: Callable[..., Tensor | None], causal: Callable[..., Any]) -> Callable[..., Tensor | None]:
    """A builder of those masks that are not plainly causal; None stands for one that is."""

    def mask(*args: Any, mask_function: Callable[..., Any] = causal, **settings: Any) -> Tensor | None:
        if mask_function is causal:
            return None
        settings.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return build(*args, mask_function=mask_function, **settings)

    return mask


def register() -> None:
    """Tell ``transformers`` of both names; may be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    for name in (SERVING, TRYING):
        AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(TRYING, _odd_masks(sdpa_mask, causal_mask_function))
