"""ModelFiles for a .gguf file. Its tokenizer is converted once and kept in the cache under the file's digest."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phloem_model.cache import cache_root, file_sha256, new_folder, remembered_sha256
from phloem_model.errors import ModelBroken, shown
from phloem_model.files import Facts, ModelFiles
from phloem_model.gguf_header import read_metadata
from phloem_model.gguf_tokenizer import END_TEXTS, convert, token_texts

CONVERSION = 1  # raise it whenever the conversion changes, so that older results in the cache are not used


def files_from_gguf(path: Path, name: str) -> ModelFiles:
    """ModelFiles for a .gguf file. Raises ModelBroken or TokenizerUnsupported."""
    digest = remembered_sha256(path)
    folder = cache_root() / "tokenizers" / f"{digest[:32]}-{CONVERSION}"
    facts = _kept_facts(folder)
    if facts is None:
        facts = _convert_into(folder, path)
    tokenizer_json = folder / "tokenizer.json"
    return ModelFiles(
        name=name,
        weights=path,
        tokenizer_json=tokenizer_json,
        model_digest=digest,
        tokenizer_digest=file_sha256(tokenizer_json),
        **asdict(facts),
    )


def _kept_facts(folder: Path) -> Facts | None:
    """What an earlier conversion left; None, with nothing left in the way, if there was none or it is damaged."""
    try:
        kept = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        facts = Facts(**{**kept, "eos_ids": tuple(kept["eos_ids"])})
    except (OSError, ValueError, TypeError, KeyError):
        facts = None
    if facts is None or not (folder / "tokenizer.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return facts


def _convert_into(folder: Path, path: Path) -> Facts:
    metadata = read_metadata(path)
    facts = facts_from_metadata(metadata, path)
    tokenizer = convert(metadata)
    with new_folder(folder) as temporary:
        (temporary / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
        (temporary / "facts.json").write_text(json.dumps(asdict(facts), ensure_ascii=False), encoding="utf-8")
    return facts


def facts_from_metadata(metadata: dict[str, Any], path: Path) -> Facts:
    """Context length, end tokens and chat template of a GGUF's metadata. Raises ModelBroken naming `path`."""
    texts = token_texts(metadata)
    architecture = metadata.get("general.architecture")
    context = metadata.get(f"{architecture}.context_length")
    if not isinstance(context, int) or context < 1:
        raise ModelBroken(path, "does not state its context length")
    eos_ids = _end_ids(metadata, texts)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    for index in (*eos_ids, *(() if bos is None else (bos,))):
        if not isinstance(index, int) or not 0 <= index < len(texts):
            raise ModelBroken(path, f"names token {shown(index)} as BOS or EOS, and has {len(texts)} tokens")
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelBroken(path, "has a chat template that is no text")
    return Facts(
        chat_template=template,
        eos_ids=eos_ids,
        bos=bos,
        bos_token=None if bos is None else texts[bos],
        eos_token=texts[eos_ids[0]] if eos_ids else None,
        context_length=context,
        vocab_size=len(texts),
    )


def _end_ids(metadata: dict[str, Any], texts: list[str]) -> tuple[int, ...]:
    """The named end tokens first, then those known by their text: files often name one of several."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    by_text = {text: index for index, text in enumerate(texts)}
    found = [index for index in named if index is not None] + [by_text[text] for text in END_TEXTS if text in by_text]
    return tuple(index for at, index in enumerate(found) if index not in found[:at])
