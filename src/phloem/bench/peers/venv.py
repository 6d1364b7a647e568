"""A virtual environment per peer under the cache folder: made once, made again when its requirement changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from phloem_model.cache import cache_root, locked

from .base import Peer, PeerFailed

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_S = 5.0
_MARK = "phloem-peer.txt"
"""Written last: an environment without it is half made."""


def home_of(peer: Peer) -> Path:
    """Where the peer's environment is, made or not."""
    return cache_root() / "peers" / peer.name


def installed(peer: Peer) -> bool:
    """Whether the environment is whole and holds the version we want."""
    mark = home_of(peer) / _MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == peer.requirement


def ensure(peer: Peer, say: Callable[[str], None]) -> Path:
    """The peer's environment, made first if need be; pip's own progress goes to standard error.

    Raises:
        PeerFailed: pip failed.
        ModelUnavailable: another process holds the lock for half an hour.
    """
    home = home_of(peer)
    with locked(f"peer-{peer.name}", on_wait=lambda: say(f"{peer.name}: another process is installing it; waiting")):
        if not installed(peer):
            say(f"{peer.name}: {peer.about}")
            say(f"{peer.name}: installing {peer.requirement} into {home}")
            say(f"{peer.name}: {peer.download}")
            _make(peer, home)
    return home


def _make(peer: Peer, home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _run(peer, [sys.executable, "-m", "venv", str(home)])
    pip = str(home / "bin" / "pip")
    if peer.torch and _answers(CPU_INDEX):
        _run(peer, [pip, "install", "--index-url", CPU_INDEX, peer.torch])
    _run(peer, [pip, "install", *peer.install_flags, peer.requirement])
    peer.finish(home)
    (home / _MARK).write_text(peer.requirement, encoding="utf-8")


def _answers(index: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=ANSWER_S) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _run(peer: Peer, command: list[str]) -> None:
    """No deadline of our own: pip has one per connection, and the person sees its progress and can interrupt."""
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerFailed(f"{peer.name} could not be installed: {error}") from error
