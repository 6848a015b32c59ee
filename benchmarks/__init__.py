"""Benchmarks: `python -m benchmarks layers`, `... sofie`, `... models`."""
