"""The cache folder: where it is, whole-or-nothing writes, one lock per model, digests remembered by file state.

Everything in the cache can be deleted at any time; it comes back on the next use.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from phloem_model.errors import ModelUnavailable

LOCK_WAIT_S = 1800.0  # another process may be downloading the same 100 MB over a slow line
LOCK_POLL_S = 0.1
READ_BYTES = 1 << 20


def cache_root() -> Path:
    """The cache folder: PHLOEM_CACHE, else $XDG_CACHE_HOME/phloem, else ~/.cache/phloem. It may not exist yet."""
    chosen = os.environ.get("PHLOEM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "phloem"


@contextmanager
def locked(name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the cache's lock `name` against other processes and threads; `on_wait` is called once if it is taken.

    The kernel drops the lock of a process that dies. Raises ModelUnavailable after LOCK_WAIT_S.
    """
    path = cache_root() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_WAIT_S
    with path.open("w") as handle:
        waited = False
        while not _try_lock(handle.fileno()):
            if not waited:
                on_wait()
                waited = True
            if time.monotonic() > deadline:
                raise ModelUnavailable(f"another process holds {path} for {LOCK_WAIT_S:.0f} s")
            time.sleep(LOCK_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well, and vanishes when it does not.

    If `target` came into being meanwhile, it is kept: both writers made the same thing.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `path` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def file_sha256(path: Path) -> str:
    """sha256 hex of a file's bytes, read now."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remembered_sha256(path: Path) -> str:
    """sha256 hex of a file; a file whose size, inode and modification time did not change is not read again."""
    path = path.resolve()
    state = path.stat()
    seen = [str(path), state.st_size, state.st_mtime_ns, state.st_ino]
    note = cache_root() / "digests" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["file"] == seen:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or not ours to trust: read the file
    digest = file_sha256(path)
    write_text(note, json.dumps({"file": seen, "sha256": digest}))
    return digest
