"""ModelFiles for a folder with config.json, *.safetensors and tokenizer.json, as model hubs lay them out."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phloem_model.cache import file_sha256, remembered_sha256
from phloem_model.errors import ModelBroken, shown
from phloem_model.files import Facts, ModelFiles

Json = dict[str, Any]
_CONTEXT_LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")  # by kind of model
MOST_TOKENS = 1 << 24  # real vocabularies have some 300,000; whoever believes an absurd id asks for absurd memory


def files_from_folder(folder: Path, name: str) -> ModelFiles:
    """ModelFiles for a model folder. Raises ModelBroken naming the file that is missing or wrong."""
    config = _read_json(folder / "config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelBroken(folder, "has no *.safetensors weights")
    tokenizer_json = folder / "tokenizer.json"
    facts = _facts(folder, config, _token_ids(_read_json(tokenizer_json), tokenizer_json))
    return ModelFiles(
        name=name,
        weights=folder,
        tokenizer_json=tokenizer_json,
        model_digest=_folder_digest([folder / "config.json", *weights]),
        tokenizer_digest=file_sha256(tokenizer_json),
        **asdict(facts),
    )


def _folder_digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{remembered_sha256(path)}\n".encode())
    return digest.hexdigest()


def _facts(folder: Path, config: Json, ids: dict[str, int]) -> Facts:
    tokenizer_config = _read_json_if_there(folder / "tokenizer_config.json")
    generation = _read_json_if_there(folder / "generation_config.json")
    texts = {index: text for text, index in ids.items()}
    text_config = config.get("text_config") or config  # multi-modal models nest what concerns the text model
    if not isinstance(text_config, dict):
        raise ModelBroken(folder / "config.json", "has a text_config that is no object")
    context = next((text_config[name] for name in _CONTEXT_LENGTH if text_config.get(name) is not None), None)
    if not isinstance(context, int) or context < 1:
        raise ModelBroken(folder / "config.json", "does not state max_position_embeddings")
    named_bos = _token_name(tokenizer_config.get("bos_token"))
    bos = ids.get(named_bos) if named_bos is not None else text_config.get("bos_token_id")
    eos_ids = _eos_ids(generation, text_config, tokenizer_config, ids)
    for index in (*eos_ids, *(() if bos is None else (bos,))):
        if not isinstance(index, int) or index < 0:
            raise ModelBroken(folder, f"names {shown(index)} as a BOS or EOS token, which is no token id")
    return Facts(
        chat_template=_chat_template(folder, tokenizer_config),
        eos_ids=eos_ids,
        bos=bos,
        bos_token=None if bos is None else texts.get(bos),
        eos_token=texts.get(eos_ids[0]) if eos_ids else None,
        context_length=context,
        vocab_size=max(ids.values(), default=-1) + 1,
    )


def _token_ids(tokenizer: Json, path: Path) -> dict[str, int]:
    try:
        ids: dict[str, int] = dict(tokenizer["model"]["vocab"])
        ids.update({token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()})
        if not all(isinstance(index, int) and 0 <= index < MOST_TOKENS for index in ids.values()):
            raise ValueError("an id is not a number, or absurd")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelBroken(path, "is not a tokenizer with a vocabulary of texts and ids") from error
    return ids


def _eos_ids(generation: Json, config: Json, tokenizer_config: Json, ids: dict[str, int]) -> tuple[int, ...]:
    found: list[int] = []
    name = _token_name(tokenizer_config.get("eos_token"))
    if name in ids:
        found.append(ids[name])
    for source in (generation, config):
        value = source.get("eos_token_id")
        found.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(index for at, index in enumerate(found) if index not in found[:at])


def _token_name(value: Any) -> str | None:
    if isinstance(value, dict):  # written as an AddedToken
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, tokenizer_config: Json) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except ValueError as error:
            raise ModelBroken(jinja, "is not UTF-8") from error
    template = _read_json_if_there(folder / "chat_template.json").get(
        "chat_template", tokenizer_config.get("chat_template")
    )
    if isinstance(template, list):  # several, by name
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None


def _read_json_if_there(path: Path) -> Json:
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelBroken(path, "is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(path, f"cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelBroken(path, "is not a JSON object")
    return value
