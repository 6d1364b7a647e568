"""The contract between Phloem's services: messages, subjects and their bytes."""
