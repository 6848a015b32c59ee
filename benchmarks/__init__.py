"""Benchmarks: `python -m benchmarks.sofie`, `python -m benchmarks.layers`."""
