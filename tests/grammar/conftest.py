from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phloem_grammar.engine import ENGINES, Engine, load
from phloem_model.tiny import IM_END, byte_tokenizer
from tests.grammar.languages import Tokenizers

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """The byte tokenizer: token i is the byte i."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(byte_tokenizer()))
    return Tokenizers.load(path, (IM_END,))


@pytest.fixture(scope="session")
def llguidance(tokenizers: Tokenizers) -> Engine:
    return load(ENGINES["llguidance"], tokenizers.source)


@pytest.fixture(scope="session")
def xgrammar(tokenizers: Tokenizers) -> Engine:
    return load(ENGINES["xgrammar"], tokenizers.source)


def shared_data(name: str) -> Path | None:
    """A file or folder of the shared data, where it is there."""
    roots = [os.environ.get("PHLOEM_DATA"), str(HERE.parents[2] / "shared" / "data")]
    return next((path for root in roots if root and (path := Path(root) / name).exists()), None)
