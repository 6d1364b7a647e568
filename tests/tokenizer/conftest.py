"""Fixtures: the tiny byte model (a token is a byte), in a cache of its own; the real default model."""

import os
from collections.abc import Iterator

import pytest

from phloem_model import ModelFiles, resolve
from phloem_tokenizer.core import TokenizerCore
from phloem_tokenizer.vocab import Vocabulary


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFiles]:
    former = os.environ.get("PHLOEM_CACHE")
    os.environ["PHLOEM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        yield resolve("tiny")
    finally:
        if former is None:
            del os.environ["PHLOEM_CACHE"]
        else:
            os.environ["PHLOEM_CACHE"] = former


@pytest.fixture(scope="session")
def tiny_core(tiny: ModelFiles) -> TokenizerCore:
    return TokenizerCore(tiny, "tiny")


@pytest.fixture(scope="session")
def byte_vocabulary(tiny_core: TokenizerCore) -> Vocabulary:
    return tiny_core.vocabulary


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The real default model, from the real cache (fetched if it is not there)."""
    return resolve("smollm2")
