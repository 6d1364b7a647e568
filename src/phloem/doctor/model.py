"""The model's files and the cache they are in."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from phloem_model.cache import cache_root
from phloem_model.catalogue import CATALOGUE
from phloem_model.pull import find_pulled

from .finding import Finding, error, ok, warning

USUAL = "smollm2"
STAND_IN = "stand-in:"
GIB = 2**30
LEAST_DISK = GIB
"""Room for a small model, its tokenizer and the kernels."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The cache, and the model that would be served."""
    root = cache_root()
    there = next(place for place in (root, *root.absolute().parents) if place.exists())
    yield cache(root, writable=os.access(there, os.W_OK), free=shutil.disk_usage(there).free)
    yield model(environ.get("PHLOEM_MODEL") or USUAL)


def cache(root: Path, *, writable: bool, free: int) -> Finding:
    """free: bytes on its disk."""
    text = f"{root}, {free / GIB:.1f} GiB free"
    if not writable:
        advice = "make it writable, or set PHLOEM_CACHE; nothing, if models and kernels come with an image"
        return warning("cache", f"{text}; it can't be written: no model is fetched and no kernel compiled", advice)
    if free < LEAST_DISK:
        return warning("cache", f"{text}: little for a model", "free some, or set PHLOEM_CACHE to another disk")
    return ok("cache", text)


def model(name: str) -> Finding:
    """name: as ``--model`` takes it. Nothing is fetched."""
    if name in CATALOGUE:
        found = find_pulled(name)
        if found is not None:
            return ok("model", f"{name} is there: {found}")
        size = CATALOGUE[name].download_bytes / 1e6
        return warning(
            "model", f"{name} is not here yet: the first start fetches it ({size:.0f} MB)", f"phloem pull {name}"
        )
    if name == "tiny" or name.startswith(STAND_IN):
        return ok("model", f"{name} needs no files")
    if Path(name).expanduser().exists():
        return ok("model", f"{name} is there")
    if _HUB_ID.fullmatch(name):
        return warning(
            "model", f"{name} is looked for on the hub, or in its cache, at the start", f"phloem pull {name}"
        )
    known = ", ".join(sorted([*CATALOGUE, "tiny"]))
    return error(
        "model",
        f"no model {name!r}: not a file or folder, not a hub id (owner/name), not one of {known}",
        "mend PHLOEM_MODEL",
    )
