"""`phloem chaos`: a deployment of its own, real faults, and what clients see of them."""
