# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m benchmarks layers`, `... sofie`, `... models`."""
