"""The rule of "auto": which engines are tried for a convolution, in which order.

The first line that applies decides. An engine that refuses a convolution, or that its
own plan calls slower, leaves it to the next one; `explain` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax_convbatch import targets
from jax_convbatch.planners import Problem

COLUMNS_LAST = ("cudnn", "im2col_gemm")
OURS_FIRST = ("implicit_gemm", *COLUMNS_LAST)
CUDNN_FIRST = ("cudnn", "implicit_gemm", "im2col_gemm")


class Line(NamedTuple):
    """
    Attributes:
      gpus: "hopper" (compute capability 9.0) or "any" (8.0 and later; older ones have
        no native code).
      ops: of fprop, dgrad and wgrad.
      applies: to which problems.
      engines: in order.
      why: the measurement or the argument.
    """

    gpus: str
    ops: tuple[str, ...]
    applies: Callable[[Problem], bool]
    engines: tuple[str, ...]
    why: str


ALL = ("fprop", "dgrad", "wgrad")


def _always(problem: Problem) -> bool:
    return True


def _f64(problem: Problem) -> bool:
    return problem.dtype.name == "float64"


def _groups(problem: Problem) -> bool:
    return problem.geometry.groups > 1


CUDA = (
    Line(
        "any",
        ALL,
        _f64,
        ("im2col_gemm", "cudnn"),
        "cuBLAS has tensor cores for f64, cuDNN's convolutions do not use them",
    ),
    Line(
        "hopper",
        ALL,
        _always,
        OURS_FIRST,
        "our kernels are measured ahead of cuDNN's (docs/benchmarks.md)",
    ),
    Line(
        "any",
        ALL,
        _groups,
        OURS_FIRST,
        "cuDNN's kernels for depthwise layers and small groups are far from the roof "
        "on every GPU; ours read each array once",
    ),
    Line(
        "any",
        ALL,
        _always,
        COLUMNS_LAST,
        "cuDNN's kernels were tuned for this GPU, and ours were not measured on it",
    ),
)
CPU = ("implicit_gemm", "im2col_gemm")


def engines(problem: Problem) -> tuple[str, ...]:
    """What "auto" tries, in order; after it `jax.lax`."""
    if problem.platform == "cpu":
        return CPU
    if problem.platform != "cuda":
        return ()
    return line(problem).engines


def line(problem: Problem) -> Line:
    """The line of the table that decides on CUDA."""
    return next(
        each
        for each in CUDA
        if (each.gpus == "any" or targets.is_hopper())
        and problem.op in each.ops
        and each.applies(problem)
    )
