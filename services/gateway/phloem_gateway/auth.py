"""API keys: constant-time comparison, and a name per key that does not show it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from .errors import ApiError

ANYONE = "-"
"""Owner of requests when no keys are set."""


class Keys:
    """Checks ``Authorization: Bearer`` values.

    Args:
        keys: the accepted keys; none = everybody is let in.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def owner(self, authorization: str | None) -> str:
        """Who calls, as 32 hex digits of the key's hash (`ANYONE` when no keys are set): what is one owner's is closed to others, so no two keys
        may be one.

        Raises:
            ApiError: ``invalid_api_key``.
        """
        if not self._digests:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        given = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = False
        for digest in self._digests:  # all of them, so that time tells nothing about which one matched
            found |= hmac.compare_digest(digest, given)
        if scheme.lower() != "bearer" or not found:
            told = (
                "Incorrect API key provided."
                if authorization
                else "You didn't provide an API key (Authorization: Bearer KEY)."
            )
            raise ApiError("invalid_api_key", told)
        return given.hex()[:32]
