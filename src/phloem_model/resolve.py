"""From what a person types after `--model` to the files on this machine."""

import logging
import re
from pathlib import Path

from phloem_model.catalogue import CATALOGUE
from phloem_model.errors import ModelBroken, ModelNotFound, ModelUnavailable
from phloem_model.files import ModelFiles
from phloem_model.from_folder import files_from_folder
from phloem_model.from_gguf import files_from_gguf
from phloem_model.pull import Progress, pull
from phloem_model.tiny import tiny_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]

_log = logging.getLogger("phloem.model")


def resolve(model: str, progress: Progress = _log.info) -> ModelFiles:
    """The files and facts of a model; blocks while something is fetched or converted.

    `model` is "tiny", a name of the catalogue ("smollm2"), a path to a .gguf file or to a model folder, or a hub id
    ("owner/name", where huggingface_hub is installed). Raises ModelNotFound, ModelUnavailable, ModelBroken or
    TokenizerUnsupported, each with one line that can be shown.
    """
    if model == "tiny":
        return files_from_folder(tiny_folder(), "tiny")
    if model in CATALOGUE:
        return files_from_gguf(pull(model, progress), model)
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return _from_directory(path.resolve(), path.resolve().name)
        if path.is_file():
            return _from_file(path.resolve())
    except OSError as error:  # what is named by a folder can't be opened
        raise ModelBroken(Path(error.filename or path), f"cannot be read ({error.strerror})") from error
    if _HUB_ID.fullmatch(model):
        return _from_directory(_hub_folder(model, progress), model)
    raise ModelNotFound(
        f"no model {model!r}: not a file or folder, not a hub id (owner/name), "
        f"and not one of {', '.join(sorted([*CATALOGUE, 'tiny']))}"
    )


def _from_file(path: Path) -> ModelFiles:
    if path.suffix != ".gguf":
        raise ModelBroken(path, "is a file, and not a .gguf")
    return files_from_gguf(path, path.stem)


def _from_directory(folder: Path, name: str) -> ModelFiles:
    if not (folder / "config.json").is_file():
        found = sorted(folder.glob("*.gguf"))
        if len(found) == 1:
            return files_from_gguf(found[0], name)
        if found:
            raise ModelBroken(folder, f"holds {len(found)} .gguf files; name one of them")
    return files_from_folder(folder, name)


def _hub_folder(model: str, progress: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelNotFound(f"no model {model!r} here, and huggingface_hub is not installed to fetch it") from None
    progress(f"{model}: looking it up on the hub")
    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub client raises many kinds; all mean the same to the person who asked
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelUnavailable(f"{model} could not be fetched from the hub: {reason[0]}") from error
