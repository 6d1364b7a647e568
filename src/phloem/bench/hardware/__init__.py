"""`phloem bench hardware`: what the machine can do, and how near to it the worker comes."""
