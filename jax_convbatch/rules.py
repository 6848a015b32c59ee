"""The rule of "auto": which engines are tried for a convolution, in which order.

The first line that applies decides. An engine that refuses a convolution, or that its
own plan calls slower, leaves it to the next one; `explain` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax_convbatch import depth, targets
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


def _tensor_cores(problem: Problem) -> bool:
    """One group, in 16 bits or in f32 as TF32."""
    half, tf32 = problem.dtype.itemsize == 2, problem.precision == 0
    return problem.geometry.groups == 1 and (half or tf32)


def _deep(problem: Problem) -> bool:
    """Three axes that are no two, as the first has taps or a stride and others have,
    too; of more than a few channels, for which cuDNN's kernels are slow."""
    g = problem.geometry
    moves = g.T > 1 or g.stride[0] > 1
    three = depth.is_deep(g) and moves and depth.flat(g) is None
    return three and min(g.C, g.K) >= 32 and _tensor_cores(problem)


def _deep_f32(problem: Problem) -> bool:
    g = problem.geometry
    strided = problem.op == "dgrad" and g.stride != (1, 1, 1)
    return _deep(problem) and problem.dtype.itemsize == 4 and not strided


def _deep_half(problem: Problem) -> bool:
    """In 16 bits what our kernels do not read in place."""
    g = problem.geometry
    if not _deep(problem) or problem.dtype.itemsize == 4:
        return False
    if problem.op == "wgrad":
        return True
    in_place = g.C % 64 == 0 and g.K % 64 == 0
    strided = problem.op == "dgrad" and g.stride != (1, 1, 1)
    return not in_place and not strided


def _many_taps(problem: Problem) -> bool:
    """5x5 and larger filters of one step between channels that fill tiles."""
    g = problem.geometry
    many = g.R * g.S >= 25 and g.T == 1 and g.stride == (1, 1, 1)
    return _tensor_cores(problem) and many and min(g.C, g.K) >= 64


def _long_sequences(problem: Problem) -> bool:
    """Sequences of 64k and more, of many channels."""
    g = problem.geometry
    long = g.H == g.D == 1 and g.Q >= 1 << 16 and g.S > 1
    half = problem.dtype.itemsize == 2
    return _tensor_cores(problem) and half and long and min(g.C, g.K) >= 512


def _thin_sequences(problem: Problem) -> bool:
    """Sequences of a few channels."""
    g = problem.geometry
    half, wide = problem.dtype.itemsize == 2, max(g.C, g.K) > 32
    thin = g.H == g.D == 1 and min(g.C, g.K) >= 16 and not wide
    return _tensor_cores(problem) and half and thin and g.S > 1


BOTH = ("fprop", "dgrad")
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
        BOTH,
        _deep_f32,
        CUDNN_FIRST,
        "ours copies x once a tap of depth: 32x32x32 128 at batch 2 fprop 247 us, "
        "cuDNN 183; 16x16x16 256 dgrad 124, 88 (H100)",
    ),
    Line(
        "hopper",
        ALL,
        _deep_half,
        CUDNN_FIRST,
        "ours copies x there: 9x44x320 64->32 fprop 130 us, cuDNN 82; wgrad of 8x32x32 "
        "128 at batch 2 44, 34 (H100)",
    ),
    Line(
        "hopper",
        BOTH,
        _many_taps,
        CUDNN_FIRST,
        "ours reads x again for each tap: 16x16 192->256 5x5 at batch 672 fprop 694 "
        "us, cuDNN 547; 32x32 96->192 in f32 at batch 1024 5005, 3835 (H100)",
    ),
    Line(
        "hopper",
        ALL,
        _long_sequences,
        CUDNN_FIRST,
        "131072 steps of 1152 channels, 5 taps, batch 2: fprop 6618 us, cuDNN 5267; "
        "wgrad 11253, 6648 (H100)",
    ),
    Line(
        "hopper",
        BOTH,
        _thin_sequences,
        CUDNN_FIRST,
        "our tiles are 64 channels wide: 120000 steps of 16 channels fprop 26 us, "
        "cuDNN 14 (H100)",
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
