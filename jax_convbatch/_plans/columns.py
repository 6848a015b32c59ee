# SPDX-License-Identifier: Apache-2.0
"""How convolutions run by columns in memory, the engines im2col_gemm and per_sample.

The columns are those of x, in slices of the batch, or of the outputs where there are
fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jax_convbatch._plans import dual, padded
from jax_convbatch._plans.kinds import OneCall, Plan
from jax_convbatch._plans.planners import (
    INT32_MAX,
    Problem,
    aligned,
    largest_slice,
    sliced_limit,
)

# Rows of columns of outputs begin at multiples of sixteen bytes.
_FOURS = padded.Wanted(multiple=4, even=False)


def columns(engine: str, problem: Problem) -> Plan:
    """im2col_gemm and per_sample: as many samples as the limit allows, or one.

    Raises:
      ValueError: the limit is too small for one sample.
    """
    platform, asked = problem.platform, problem.workspace_limit
    turned = columns_of_outputs(problem)
    if turned and (copied := _with_outputs_of_zeros(engine, problem)):
        return copied
    its = turned or problem
    per_sample, fixed = _workspace(its)
    limit = sliced_limit(asked, platform, lambda: per_sample(1) + fixed)
    samples = 1 if engine == "per_sample" else max(its.geometry.N, 1)
    samples = largest_slice(per_sample, limit - fixed, samples)
    if not samples:
        raise ValueError(
            f"workspace_limit={asked} bytes is too small for this {problem.op}: "
            f"one sample needs {per_sample(1) + fixed} bytes"
        )
    reason = "im2col, then a GEMM"
    if (platform, problem.dtype.name) == ("cuda", "float32"):
        reason += ", as TF32" if problem.precision == 0 else ", in true float32"
    if turned:
        reason += f", columns of outputs, as {its.op} of the mirrored convolution"
    call = OneCall(engine, reason, samples, per_sample(samples) + fixed)
    return dual.Strided.like(call, of=call) if turned else call


def _with_outputs_of_zeros(engine: str, problem: Problem) -> Plan | None:
    """The plan with outputs of zeros beside an odd number of them, or None.

    cuBLAS has fast kernels for rows that begin at sixteen bytes: f32 1280->3 of 2x32x32
    takes 62 us, with four outputs 20; but 64->2 of volumes 164 and 255 (one H200). None
    where more than y and w would be copied, or the limit has no room for these.
    """
    g, room = problem.geometry, problem.workspace_limit
    copies = padded.geometry(g, _FOURS)
    if g.K % 2 == 0 or copies is None or copies != g._replace(K=copies.K):
        return None
    if columns_of_outputs(replace(problem, geometry=copies)) is None:
        return None
    if room is not None:
        room -= padded.copy_bytes(g, copies, problem.dtype.itemsize)

    def of_copies(other: Problem) -> Plan:
        return columns(engine, replace(other, workspace_limit=room))

    try:
        return padded.plan(problem, _FOURS, of_copies)
    except ValueError:  # one sample's columns beside the copies
        return None


def columns_of_outputs(problem: Problem) -> Problem | None:
    """The problem that `dual` makes of fprop or wgrad, or None.

    There is one of many inputs to few outputs, if its columns are smaller. fprop
    multiplies x as it lies into columns of [x's pixels, taps * K], in float32 even
    where x has 16 bits, and adds them; wgrad unrolls dy in place of x. One sample's
    workspaces are compared, so that bits do not depend on the batch. On the CPU
    implicit_gemm is the engine of such layers.
    """
    g, op = problem.geometry, problem.op
    if (problem.platform, g.groups, g.stride) != ("cuda", 1, (1, 1, 1)):
        return None
    # dgrad writes no wider result. One tap's columns are x, or x and zeros.
    widened = problem.out_dtype != problem.dtype
    if op == "dgrad" or widened or g.taps == (1, 1, 1) or g.K >= g.C:
        return None
    turned = replace(problem, op=dual.OPS[op][0], geometry=dual.turned(g))
    if turned.geometry.output_pixels > INT32_MAX:
        return None
    (its, _), (ours, _) = _workspace(turned), _workspace(problem)
    return turned if its(1) < ours(1) else None


def _workspace(problem: Problem) -> tuple[Callable[[int], int], int]:
    """Bytes for a number of samples (a function), and bytes besides."""
    op, g, dtype = problem.op, problem.geometry, problem.dtype
    half = dtype.itemsize == 2
    accumulator = max(dtype.itemsize, 4)
    column_elements = g.output_pixels * g.column_size * g.groups
    if problem.platform == "cpu":
        # The BLAS has no 16-bit types: columns, y and w are converted.
        columns = 0 if g.is_pointwise and not half else column_elements
        y = g.output_pixels * g.K if half else 0
        fixed = aligned(g.w_size, 4) if half else 0
        # dgrad of a strided 1x1 transposes the filter.
        one_tap = g.column_size * g.groups == g.C
        if op == "dgrad" and one_tap and not (g.is_pointwise or half):
            fixed = aligned(g.w_size, accumulator)
        return (
            lambda n: aligned(n * columns, accumulator) + aligned(n * y, 4),
            fixed,
        )
    columns = 0 if g.is_pointwise else column_elements
    itemsize = accumulator if op == "dgrad" else dtype.itemsize
    if op != "wgrad":
        return lambda n: aligned(n * columns, itemsize), 0
    return (
        lambda n: aligned(n * columns, itemsize) + aligned(n * g.w_size, accumulator),
        aligned(g.w_size, accumulator),
    )
