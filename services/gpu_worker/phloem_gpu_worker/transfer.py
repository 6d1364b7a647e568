"""Between host and device without waiting for either. On the CPU nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """``values`` on ``device``, at this place of its stream; the host goes on at once, from pinned memory that outlives the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Tensor:
    """A tensor on the host that has the values of ``tensor`` once the device's stream has passed this place."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
