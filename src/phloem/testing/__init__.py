"""What tests of and with Phloem need: a tiny model, and all five services around it in one event loop."""

from phloem_model.tiny import byte_tokenizer, tiny_folder, write_tiny

from .cluster import LocalCluster, local_cluster

__all__ = ["LocalCluster", "byte_tokenizer", "local_cluster", "tiny_folder", "write_tiny"]
