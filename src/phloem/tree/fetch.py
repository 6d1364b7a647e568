"""Ask a server for its cache. The standard library's client: the base installation has no other."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from .errors import NotSeen, Unusable
from .picture import Picture, visible

TIMEOUT_S = 5.0
"""How long a server may be silent, and take for the whole reply."""
MAX_BYTES = 16 * 1024 * 1024
"""Largest reply that is read: 2000 nodes on a hundred workers are smaller."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FINAL = (400, 401, 403, 404, 405)


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would carry the key along to wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Source:
    """Where the cache is seen.

    Args:
        url: of the server, without a path.
        max_nodes: most nodes of one picture.
        key: API key, "" = none.

    Raises:
        Unusable: ``url`` is none.
    """

    def __init__(self, url: str, *, max_nodes: int, key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Unusable(f"--url must be like http://127.0.0.1:8000, not {visible(url)[:100]}")
        self.url = url.rstrip("/")
        headers = {"accept": "application/json", "user-agent": "phloem-tree"}
        self._request = Request(
            f"{self.url}/radix?max_nodes={max_nodes}",
            headers=headers | ({"authorization": f"Bearer {key}"} if key else {}),
        )
        handlers = [ProxyHandler({})] if parts.hostname in _LOOPBACK else []
        self._opener: OpenerDirector = build_opener(_NoRedirects(), *handlers)

    def look(self) -> Picture:
        """The cache now. Raises `NotSeen`."""
        try:
            body = self._read()
        except HTTPError as error:
            raise NotSeen(f"{self.url}: {_told(error)}", final=error.code in _FINAL) from None
        except URLError as error:
            reason = error.reason
            raise NotSeen(f"{self.url}: {getattr(reason, 'strerror', None) or reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotSeen(f"{self.url}: {error or type(error).__name__}") from None
        try:
            return msgspec.json.decode(body, type=Picture)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NotSeen(f"{self.url}: what came is no picture of a prefix cache", final=True) from None

    def _read(self) -> bytes:
        until = time.monotonic() + TIMEOUT_S
        chunks: list[bytes] = []
        size = 0
        with self._opener.open(self._request, timeout=TIMEOUT_S) as reply:
            while chunk := reply.read1(65536):
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BYTES:
                    raise ValueError(f"the reply is larger than {MAX_BYTES} bytes")
                if time.monotonic() > until:
                    raise ValueError(f"the reply took more than {TIMEOUT_S:g} s")
        return b"".join(chunks)


def _told(error: HTTPError) -> str:
    """Status, and the server's own words where it has some."""
    try:
        told = msgspec.json.decode(error.read(65536))["error"]["message"]
    except (OSError, http.client.HTTPException, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        told = error.reason
    return visible(f"{error.code} {told}")[:300]
