"""`phloem bench`: measure servers (`serve`), start others to measure against (`peer`), measure our own overlap (`overlap`)."""

from .app import app

__all__ = ["app"]
