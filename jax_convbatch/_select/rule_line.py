# SPDX-License-Identifier: Apache-2.0
"""A line of the rule of "auto", and what lines on Hopper GPUs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax_convbatch._plans.planners import Problem

COLUMNS_LAST = ("cudnn", "im2col_gemm")
OURS_FIRST = ("implicit_gemm", *COLUMNS_LAST)
COLUMNS_FIRST = ("im2col_gemm", "implicit_gemm", "cudnn")
CUDNN_FIRST = ("cudnn", "implicit_gemm", "im2col_gemm")
CUDNN_LAST = ("implicit_gemm", "im2col_gemm", "cudnn")


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
BOTH = ("fprop", "dgrad")
FPROP, DGRAD, WGRAD = ("fprop",), ("dgrad",), ("wgrad",)


def ours_first(ops: Any, applies: Any, why: str) -> Line:
    """On Hopper."""
    return Line("hopper", ops, applies, OURS_FIRST, f"{why} (H100 or H200)")


def cudnn_first(ops: Any, applies: Any, why: str) -> Line:
    """On Hopper."""
    return Line("hopper", ops, applies, CUDNN_FIRST, f"{why} (H100 or H200)")


def columns_first(ops: Any, applies: Any, why: str) -> Line:
    """On Hopper."""
    return Line("hopper", ops, applies, COLUMNS_FIRST, f"{why} (H100 or H200)")


def cudnn_last(ops: Any, applies: Any, why: str) -> Line:
    """On Hopper: columns where no kernel of ours runs."""
    return Line("hopper", ops, applies, CUDNN_LAST, f"{why} (H200)")
