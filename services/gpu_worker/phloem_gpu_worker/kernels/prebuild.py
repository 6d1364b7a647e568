"""``python -m phloem_gpu_worker.kernels.prebuild FOLDER``: compile the kernels of every level, for an image that has no compiler."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from .build import LEVELS, NoKernels, library


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 if a compile failed, 2 if there is not exactly one folder."""
    if len(arguments) != 1:
        print("usage: python -m phloem_gpu_worker.kernels.prebuild FOLDER", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for level in LEVELS:
            print(library(level, Path(arguments[0])))
    except NoKernels as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
