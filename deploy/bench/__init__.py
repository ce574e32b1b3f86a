"""Benchmarks of a room."""
