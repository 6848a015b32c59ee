# SPDX-License-Identifier: Apache-2.0
"""The rule of "auto": which engines are tried for a convolution, in which order.

The first line that applies decides. An engine that refuses a convolution, or that its
own plan calls slower, leaves it to the next one; `explain` says why.
"""

from __future__ import annotations

from jax_convbatch._native import targets
from jax_convbatch._plans import met_taps
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import rule_classes as classes
from jax_convbatch._select.rule_line import Line
from jax_convbatch._select.rule_table import CUDA

CPU = ("implicit_gemm", "im2col_gemm")
CPU_PRODUCTS = ("im2col_gemm", "implicit_gemm")
WHY_PRODUCTS = (
    "a sample is its own columns: 32x32 16->16 at batch 8 in f32 52 us, implicit_gemm "
    "160, jax.lax 87; wgrad of 24->40 166, 404, 618 (one core, AVX-512)"
)


def engines(problem: Problem) -> tuple[str, ...]:
    """What "auto" tries, in order; after it `jax.lax`."""
    if problem.platform == "cpu":
        return CPU_PRODUCTS if classes.cpu_products(problem) else CPU
    if problem.platform != "cuda":
        return ()
    return line(problem).engines


def why(problem: Problem) -> str:
    """What decides between the engines."""
    return WHY_PRODUCTS if problem.platform == "cpu" else line(problem).why


def line(problem: Problem) -> Line:
    """The line of the table that decides on CUDA."""
    problem = met_taps.reduced(problem)
    return next(
        each
        for each in CUDA
        if (each.gpus == "any" or targets.is_hopper())
        and problem.op in each.ops
        and each.applies(problem)
    )
