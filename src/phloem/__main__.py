"""Entry of `phloem` and `python -m phloem`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

from phloem.cli import app


def main() -> None:
    """Run the command line and exit."""
    app(prog_name="phloem")


if __name__ == "__main__":
    main()
