"""The noun of this package: what the services need to know of a model before they load it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are, and the facts that several services share.

    `weights` is a .gguf file, or a folder with config.json and *.safetensors.
    """

    name: str
    weights: Path
    tokenizer_json: Path
    chat_template: str | None  # jinja source; None: the model has no chat template
    eos_ids: tuple[int, ...]  # every token id that ends a generation, the main one first; may be empty
    bos: int | None
    bos_token: str | None  # the text of `bos`, for chat templates
    eos_token: str | None  # the text of eos_ids[0], for chat templates
    context_length: int  # tokens, prompt and output together
    vocab_size: int  # token ids run from 0 to vocab_size - 1 (of the tokenizer; the model's matrix may have more rows)
    model_digest: str  # sha256 hex of the weights (of a folder: of its config and weight files' digests)
    tokenizer_digest: str  # sha256 hex of tokenizer.json


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of ModelFiles that is read out of a GGUF's metadata or a folder's configuration files."""

    chat_template: str | None
    eos_ids: tuple[int, ...]
    bos: int | None
    bos_token: str | None
    eos_token: str | None
    context_length: int
    vocab_size: int
