"""Other servers to measure against, each in a virtual environment of its own: what they need must not meet what we need."""

from .base import Peer, PeerFailed
from .llamacpp import LLAMACPP
from .vllm import VLLM

PEERS: dict[str, Peer] = {peer.name: peer for peer in (VLLM, LLAMACPP)}

__all__ = ["PEERS", "Peer", "PeerFailed"]
