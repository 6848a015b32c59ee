# SPDX-License-Identifier: Apache-2.0
"""How many pixels of a row are folded into one (`_plans/folded.py`), and whether taps
are channels (`_plans/tap_columns.py`), on Hopper GPUs.

A tile multiplies whole boxes of the channels that it sums over, 128 bytes, by 64
others at least. What a fold costs is counted so: products for each pixel of y, those
with zeros too. It has to be less than without a fold by what comes with it, a filter
of zeros and, in fprop and dgrad, a pass over the result. How much less was measured:
docs/research_log/few_channels.md#folded-pixels.
"""

from __future__ import annotations

import math

from jax_convbatch._native import targets
from jax_convbatch._plans import folded
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import rule_classes as classes
from jax_convbatch._shapes.geometry import ConvGeometry

_NARROWEST = 64  # results of a tile, in channels
_MOST = 80  # channels that were measured
_WIDEST = 160  # channels of folded pixels, but where fewer are not whole
# Elements of a sample of x or y: where there are fewer, launches are the time.
_LEAST, _LEAST_OF_HALF = 1 << 13, 1 << 18


def fold_of(problem: Problem) -> int:
    """How many pixels are folded; 1 where none are.

    As `rules.line`, it does not depend on the batch size.
    """
    if problem.config or not targets.is_hopper() or not _may(problem):
        return 1
    g, op, item = problem.geometry, problem.op, problem.dtype.itemsize
    costs = {1: _cost(op, g, 1, item)}
    for fold in folded.FOLDS:
        other = folded.geometry(g, fold)
        if other is None or not _is_whole(other, item):
            continue
        if folded.row_end(g, fold) and 4 * g.C > g.K:  # a copy of x
            continue
        if len(costs) == 1 or max(other.C, other.K) <= _WIDEST:
            costs[fold] = _cost(op, other, fold, item)
    if len(costs) == 1:
        return 1
    best = min((f for f in costs if f > 1), key=lambda f: (costs[f], -f))
    if _has_small_kernel(problem) and 16 // g.C in costs:
        best = 16 // g.C
    return best if costs[best] <= _most(problem, best) * costs[1] else 1


def folds(problem: Problem) -> bool:
    return fold_of(problem) > 1


def has_tap_columns(problem: Problem) -> bool:
    """wgrad of sequences of few channels to many, in 16 bits."""
    g = problem.geometry
    if problem.op != "wgrad" or problem.dtype.itemsize != 2 or g.groups > 1:
        return False
    if not targets.is_hopper() or problem.config or g.input_dilation != (1, 1, 1):
        return False
    sequence = g.H * g.R == g.D * g.T == 1 and g.Q > 0
    return sequence and g.S >= 4 and g.S * g.C <= 128 and g.K >= 256


def _may(problem: Problem) -> bool:
    """Whether folds are counted."""
    g = problem.geometry
    plain = g.stride[2] == 1 and g.input_dilation == (1, 1, 1)
    if min(g.H, g.W, g.P, g.Q, g.R, g.S) < 1:  # nothing to sum, or nowhere
        return False
    if not plain or not classes.tensor_cores(problem):
        return False
    if problem.out_dtype != problem.dtype or max(g.C, g.K) > _MOST:
        return False
    if g.D > 1:
        return _is_volume(problem)
    if min(g.C, g.K) < 2:
        return _is_scalar(problem)
    if _is_stem(problem):
        return False
    half = problem.dtype.itemsize == 2
    if problem.op == "wgrad":
        # Sums of `fold` entries of 16 bits would be rounded more than once.
        if half or classes.few_scalars(problem):
            return False
    elif g.taps == (1, 1, 1):  # a pass costs what they do
        return False
    elements = max(g.H * g.W, g.P * g.Q) * max(g.C, g.K)
    half = half and max(g.C, g.K) > 8
    return elements >= (_LEAST_OF_HALF if half else _LEAST)


def _is_volume(problem: Problem) -> bool:
    """In 16 bits, of half a box of channels."""
    g = problem.geometry
    half = problem.dtype.itemsize == 2 and problem.op != "wgrad"
    return half and g.C == g.K == 32 and min(g.taps) >= 3 and g.H * g.W >= 48 * 48


def _is_scalar(problem: Problem) -> bool:
    """f32 of one input to some channels, or dgrad of one output, where rows of the
    others are no multiples of 16 bytes; wgrad of these with large filters."""
    g, op = problem.geometry, problem.op
    one, some = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    if op == "wgrad":
        one, some = min(g.C, g.K), max(g.C, g.K)
    large = g.H * g.W >= 100 * 100 and (25 if op == "wgrad" else 9) <= g.R * g.S
    f32 = problem.dtype.itemsize == 4
    return f32 and one == 1 and some >= 32 and some % 4 != 0 and large


def _is_stem(problem: Problem) -> bool:
    """f32 of few inputs, or dgrad of few outputs: there are kernels for it, strips."""
    g, op = problem.geometry, problem.op
    few, many = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    most = 7 if op != "wgrad" else 4 if many > 16 else 3
    f32 = problem.dtype.itemsize == 4
    return f32 and few <= most and many >= 16 and many % 4 == 0


def _has_small_kernel(problem: Problem) -> bool:
    """Whether a kernel of ours is fast for 16 channels of folded pixels."""
    g = problem.geometry
    small = g.C == g.K and g.C in (2, 4, 8) and g.R * g.S <= 25 and g.H > 1
    return small and problem.dtype.itemsize == 4 and problem.op != "wgrad"


def _most(problem: Problem, fold: int) -> float:
    """The cost of a fold over that of none, at the most."""
    g, op, item = problem.geometry, problem.op, problem.dtype.itemsize
    few, many = sorted((g.C, g.K))
    whole, f32 = _is_whole(g, item), item == 4
    if op == "wgrad":
        if not whole and many > 16:
            return 2.0 if fold == 2 else 1.6
        return 1.0 if many <= 32 else 0
    if g.D > 1:
        return 0.5
    if not f32:
        return 0.15 if few >= 16 and whole else 0.2 if op == "fprop" else 0.25
    if not whole:
        return 1.6 if op == "fprop" else 2.0
    if op == "fprop" and g.C == g.K == 16 and g.H == 1 and g.filter_dilation[2] > 1:
        return 1.7  # the small kernel reads x for each tap
    own = {g.C, g.K} <= {16, 32} and g.R * g.S <= 9  # have small kernels, too
    return 0.49 if own else 0.7


def _is_whole(g: ConvGeometry, item: int) -> bool:
    """Whether pixels are multiples of 16 bytes, as TMA takes them."""
    return g.C * item % 16 == g.K * item % 16 == 0


def _cost(op: str, g: ConvGeometry, fold: int, item: int) -> float:
    """Products along a row of `g`, whose pixels are `fold`, for each of these."""
    box = 128 // item
    inner, outer = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    sums = math.ceil(inner / box) * box * g.S
    return sums * math.ceil(outer / _NARROWEST) * _NARROWEST / fold
