"""Look at everything, in the order in which people ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import device, kernels, memory, model, network, packages, processor, sharing
from .finding import Finding


def examine(environ: Mapping[str, str], file: Path) -> list[Finding]:
    """All findings about this machine. Takes some seconds, most of them for importing torch.

    Args:
        environ: where settings (PHLOEM_*) are looked for.
        file: the compose file of `phloem up`.
    """
    return [
        *packages.findings(),
        *device.findings(),
        *processor.findings(environ),
        *sharing.findings(environ, file),
        *kernels.findings(environ),
        *memory.findings(),
        *network.findings(environ),
        *model.findings(environ),
    ]
