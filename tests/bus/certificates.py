"""Certificates for tests, made with the openssl program: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in a folder of its own.

    Attributes:
        certificate: what those who trust it are given (PEM).
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            "req", "-x509", *_CURVE, "-days", "2", "-subj", "/CN=an authority of tests",
            "-keyout", self._key, "-out", self.certificate,
        )  # fmt: skip

    def sign(self, name: str, alternative: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key for ``alternative`` (``DNS:localhost,IP:127.0.0.1``)."""
        certificate, key, request, extra = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        extra.write_text(f"subjectAltName={alternative}\n")
        _openssl("req", *_CURVE, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", days, "-extfile", extra, "-out", certificate,
        )  # fmt: skip
        return certificate, key


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
