"""Benchmarks of channels, pipelines and sessions."""
