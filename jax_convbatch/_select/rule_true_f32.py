# SPDX-License-Identifier: Apache-2.0
"""Classes of f32 at HIGHEST, where sums are of whole products of f32."""

from __future__ import annotations

from jax_convbatch._plans.planners import Problem


def of_few_channels(problem: Problem) -> bool:
    """Fewer than the six products of bf16 are made for. cuDNN has kernels of the CUDA
    cores there, some of them for other sizes."""
    g = problem.geometry
    exact = problem.dtype.name == "float32" and problem.precision >= 2
    few = min(g.C, g.K) <= (24 if problem.op == "dgrad" else 15)
    columns = g.output_pixels * g.column_size * 4  # bytes, of a sample
    small = g.taps != (1, 1, 1) and columns <= 64 << 20
    return exact and g.groups == 1 and few and small
