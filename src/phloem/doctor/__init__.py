"""`phloem doctor`: what this machine has, and what Phloem will choose from it."""
