"""A peer that is a few lines of Python: serves 200 on every path, or ends at once."""

from __future__ import annotations

import sys
from pathlib import Path

from phloem.bench.peers.base import Peer, Start
from phloem_model import ModelFiles

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def fake_peer(exit_code: int | None = None) -> Peer:
    program = SERVER if exit_code is None else f"raise SystemExit({exit_code})"

    def start(home: Path, model: ModelFiles, port: int, more: tuple[str, ...]) -> Start:
        return Start((sys.executable, "-c", program, str(port)), {})

    return Peer("fake", "a fake (no licence)", "x", "about 1 MB", 1, "/health", start)
