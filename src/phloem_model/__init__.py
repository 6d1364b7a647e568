"""Where a model's files are, and what several services must know of them. Standard library only."""

from phloem_model.cache import cache_root
from phloem_model.errors import ModelBroken, ModelError, ModelNotFound, ModelUnavailable, TokenizerUnsupported
from phloem_model.files import ModelFiles
from phloem_model.pull import pull
from phloem_model.resolve import resolve

__all__ = [
    "ModelBroken",
    "ModelError",
    "ModelFiles",
    "ModelNotFound",
    "ModelUnavailable",
    "TokenizerUnsupported",
    "cache_root",
    "pull",
    "resolve",
]
