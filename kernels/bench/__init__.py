"""Benchmarks of the kernels."""
