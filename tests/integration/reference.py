"""What `transformers` says: greedy tokens and how sure it was of each."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from phloem_model import resolve

PROMPT_SEED = 11
NEW_TOKENS = 16


@dataclass(frozen=True)
class Greedy:
    """A prompt, what follows it, and the margin between the two best logits at each output position."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]


def prompts(count: int = 16) -> list[list[int]]:
    """Token-id prompts in groups of four that share 40 tokens, with 16-46 tokens of their own."""
    rng = random.Random(PROMPT_SEED)
    shared = [[rng.randrange(100, 40_000) for _ in range(40)] for _ in range(count // 4)]
    return [shared[i // 4] + [rng.randrange(100, 40_000) for _ in range(16 + 2 * i)] for i in range(count)]


def compute() -> list[Greedy]:
    """Greedy continuations by ``transformers`` ``generate`` in float32 of the default model's dequantised weights."""
    from transformers import AutoModelForCausalLM

    weights = resolve("smollm2").weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(
            str(weights.parent), gguf_file=weights.name, dtype=torch.float32, attn_implementation="eager"
        )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    results = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack([logits[0].topk(2).values for logits in out.logits])
        results.append(Greedy(prompt, out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return results


def load_or_compute(folder: Path) -> list[Greedy]:
    """`compute`, kept in ``folder`` for the other tests of this run."""
    path = folder / "greedy.json"
    if not path.exists():
        path.write_text(json.dumps([asdict(item) for item in compute()]))
    return [Greedy(**item) for item in json.loads(path.read_text())]


def first_real_difference(expected: Greedy, tokens: list[int], tie: float = 1e-3) -> int | None:
    """Position of the first token that differs although the reference was sure (margin >= ``tie``); None if there is none.

    After a difference at a tie the continuations are of different texts and are not compared.
    """
    for position, (want, got) in enumerate(zip(expected.tokens, tokens, strict=True)):
        if want != got:
            return None if expected.margins[position] < tie else position
    return None
