"""Fixtures of the worker's tests: one thread for torch, both samplers, and tiny random models of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from phloem_gpu_worker.kernel_sampler import KernelSampler
from phloem_gpu_worker.sampler import Sampler, TorchSampler

from .compiled import kernels
from .tiny_models import save_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "kernels"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return TorchSampler() if request.param == "torch" else KernelSampler(kernels())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a saved tiny model by name (see `tiny_models.CONFIGS`), made once per session."""
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            save_model(name, path)
        return path

    return folder
