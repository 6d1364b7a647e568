"""The text that a model reads, in its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from phloem_model import ModelFiles

from .plan import QualityPlan

PROSE = Path(__file__).with_name("prose.txt")
"""Some 1,700 words in paragraphs about this and that, written for this bench: no model has seen them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids. Each list is read by itself."""

    windows: list[list[int]]
    """The text in parts, the last one shorter."""
    prompts: list[list[int]]
    """How its paragraphs begin."""


def sample(plan: QualityPlan, files: ModelFiles) -> Sample:
    """The text as ``files``' tokenizer cuts it."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer_json))
    text = PROSE.read_text(encoding="utf-8")
    marked = tokenizer.encode("a").ids
    front = [files.bos] if files.bos is not None and marked[:1] == [files.bos] else []

    def ids(part: str) -> list[int]:
        found: list[int] = tokenizer.encode(part, add_special_tokens=False).ids
        return found

    whole, step = ids(text), plan.window - len(front)
    parts = [front + whole[at : at + step] for at in range(0, len(whole), step)]
    windows = [part for part in parts if len(part) > 1][: plan.windows or None]
    paragraphs = text.split("\n\n")[: plan.prompts]
    return Sample(windows, [front + ids(paragraph)[: plan.prompt_tokens] for paragraph in paragraphs])
