"""Kernels in C++ for the CPU: compiled on first use, called through a plain C interface."""
