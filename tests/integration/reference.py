"""What `transformers` says: greedy tokens and how sure it was of each."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from phloem_model import resolve

PROMPT_SEED = 11
NEW_TOKENS = {"tiny": 48, "smollm2": 12}
"""Output tokens per prompt: as many as a run of a minute allows."""


@dataclass(frozen=True)
class Greedy:
    """A prompt, what follows it, and the margin between the two best logits at each output position."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]


def prompts(vocabulary: int, count: int = 16) -> list[list[int]]:
    """Token-id prompts in groups of four that share 40 tokens, with 16-46 tokens of their own."""
    rng = random.Random(PROMPT_SEED)
    shared = [[rng.randrange(vocabulary) for _ in range(40)] for _ in range(count // 4)]
    return [shared[i // 4] + [rng.randrange(vocabulary) for _ in range(16 + 2 * i)] for i in range(count)]


def load(model: str) -> Any:
    """The model in ``transformers``, float32, from its folder or its dequantised GGUF."""
    from transformers import AutoModelForCausalLM

    weights = resolve(model).weights
    where = {"gguf_file": weights.name} if weights.is_file() else {}
    folder = weights.parent if weights.is_file() else weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager", **where
        )
    loaded.generation_config.eos_token_id = None
    loaded.generation_config.pad_token_id = 0
    return loaded


def compute(name: str) -> list[Greedy]:
    """Greedy continuations by ``transformers`` ``generate`` in float32."""
    model = load(name)
    results = []
    for prompt in prompts(min(model.config.vocab_size, 256 if name == "tiny" else 40_000)):
        ids = torch.tensor([prompt])
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=NEW_TOKENS[name],
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack([logits[0].topk(2).values for logits in out.logits])
        results.append(Greedy(prompt, out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return results


def load_or_compute(model: str, folder: Path) -> list[Greedy]:
    """`compute`, kept in ``folder`` for the other tests of this run."""
    path = folder / f"greedy-{model}.json"
    if not path.exists():
        path.write_text(json.dumps([asdict(item) for item in compute(model)]))
    return [Greedy(**item) for item in json.loads(path.read_text())]


def first_real_difference(expected: Greedy, tokens: list[int], tie: float = 1e-3) -> int | None:
    """Position of the first token that differs although the reference was sure (margin >= ``tie``); None if there is none.

    After a difference at a tie the continuations are of different texts and are not compared.
    """
    for position, (want, got) in enumerate(zip(expected.tokens, tokens, strict=True)):
        if want != got:
            return None if expected.margins[position] < tie else position
    return None
