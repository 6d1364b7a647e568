"""Load a model that ``transformers`` computes, and find out whether it computes the same through a paged pool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import BadWeights, UnsupportedModel
from .hf_attention import SERVING, TRYING, Outlook, attending, register
from .hf_compute import HfModel, HfOutline
from .hf_rules import context_length, drop_idle_window, first_line, read_hf_config, refused
from .hf_trial import Trial, check


def load_hf(folder: Path, dtype: torch.dtype, device: torch.device) -> HfModel:
    """The model in ``folder``: local files only, and no code but that of ``transformers``.

    It is tried before it is given out: what it computes in parts, beside another sequence and through our attention, must be what it computes
    by itself in one piece. So whatever has state outside keys and values, or needs more than causal attention, is refused.

    Raises:
        UnsupportedModel: it can't be computed right; says why.
        BadWeights: weights are missing, have other shapes than the configuration says, or hold what is not a number.
    """
    config = read_hf_config(folder)
    register()
    drop_idle_window(config)
    family = str(config.model_type)
    try:
        with _quiet():
            causal = _read(folder, config, dtype).to(device)
        with torch.inference_mode():
            trial = Trial.of(causal, config.vocab_size, device)
            model = _divided(causal, trial, dtype, device)
            check(model, trial)
    except UnsupportedModel as error:
        raise refused(family, str(error)) from None
    except BadWeights:
        raise
    except Exception as error:  # the code of some two hundred models; whatever it raises, the model can't be served
        raise refused(family, f"transformers can't compute it ({first_line(error)})") from error
    return model


def _read(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """The model with all of its weights, on the CPU, attending in its own way."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that they are told
            output_loading_info=True,
        )
    except (OSError, SafetensorError) as error:
        raise BadWeights(f"the safetensors files can't be read ({first_line(error)})") from error
    for name in sorted(report["missing_keys"]):
        raise BadWeights(f"weight {name} is missing")
    for wrong in report["mismatched_keys"]:
        raise BadWeights(f"weight {wrong[0]} has another shape than config.json says")
    return model.eval().requires_grad_(False)


def _divided(causal: Any, trial: Trial, dtype: torch.dtype, device: torch.device) -> HfModel:
    """The model in two parts, attending to whoever runs it. The causal model is its head from now on."""
    body = causal.get_decoder()
    name = next((name for name, module in causal.named_modules() if module is body and name), None)
    if name is None:
        raise UnsupportedModel("its head is not apart from its body")
    outlook, kind = _outlook(causal, body, trial)
    causal.set_attn_implementation(SERVING)
    causal.set_submodule(name, _Given(kind))

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = causal(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]

    if len(set(outlook.kv_heads)) > 1:
        raise UnsupportedModel("its layers have different numbers of KV heads")
    arch = HfOutline(
        vocab_size=trial.vocab_size,
        context_length=context_length(causal.config),
        layers=len(outlook.widths),
        kv_heads=outlook.kv_heads[0],
        head_dim=max(outlook.widths),
    )
    return HfModel(str(causal.config.model_type), arch, dtype, device, body, head)


def _outlook(causal: Any, body: Any, trial: Trial) -> tuple[Outlook, type]:
    """What the model's attentions ask for, and what its body answers with."""
    causal.set_attn_implementation(TRYING)
    outlook = Outlook()
    with attending(outlook):
        output = body(input_ids=trial.texts[0].ids[None], use_cache=False)
    if not outlook.widths:
        raise UnsupportedModel("its attention does not go through transformers' attention interface")
    return outlook, type(output)


class _Given(nn.Module):
    """Takes the place of the body in a model of which only the head is wanted: its output is what comes in."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return self._kind(last_hidden_state=inputs_embeds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of ``transformers``, since what matters of them is raised, and with its bar for whoever watches."""
    from transformers.utils import logging as hf_logging

    logging: Any = hf_logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
