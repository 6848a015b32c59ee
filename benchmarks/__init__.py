"""Benchmarks: `python -m benchmarks.sofie`, `python -m benchmarks.cpu_layers`."""
