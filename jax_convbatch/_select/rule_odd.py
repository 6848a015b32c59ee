# SPDX-License-Identifier: Apache-2.0
"""Classes of f32 channels that are no fours, or one, that the rule of "auto" tells
apart; the others are in `rule_classes.py`."""

from __future__ import annotations

import math

from jax_convbatch._plans import depth
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    images,
    least,
    most,
    odd,
    plain,
    sequence,
    taps,
    tf32,
)


def odd_products(problem: Problem) -> bool:
    """f32 1x1 of some channels that are no fours, of many pixels."""
    g = problem.geometry
    some = least(problem) >= 32 and most(problem) <= 80 and g.O * g.P * g.Q >= 1 << 14
    return odd(problem) and plain(problem) and taps(problem) == 1 and some


def odd_scalars(problem: Problem) -> bool:
    """1x1, whose columns are x."""
    g = problem.geometry
    few = g.C <= 80 and (g.K >= 8 or g.K in (1, g.C) or depth.is_deep(g))
    pointwise = g.K % 4 != 0 and taps(problem) == 1 and g.O * g.P * g.Q >= 128
    return odd(problem) and plain(problem) and few and pointwise


# Products of an output, its channels, and outputs and products of a pixel: those that
# `PlanScalars` (sm80/direct/scalars_plan.cc) takes. Of more outputs, which threads
# share, products of an output, and of one where no row of pixels serves several taps.
_MOST_TERMS, _MOST_INPUTS, _MOST_OUTPUTS, _MOST_PRODUCTS = 128, 12, 6, 512
_MOST_SHARED, _MOST_SHARED_TERMS, _MOST_UNREUSED = 128, 45, 3


def scalars(problem: Problem) -> bool:
    """fprop and dgrad of f32 that a kernel of a few channels has."""
    g = problem.geometry
    f32 = problem.dtype.name == "float32" and g.groups == 1
    if not f32 or not plain(problem) or problem.op == "wgrad":
        return False
    inner, outer = (g.K, g.C) if problem.op == "dgrad" else (g.C, g.K)
    terms = inner * taps(problem)
    axis = 2 if g.H == g.P == g.R == 1 else 1  # along which a thread has several
    reuses = g.taps[axis] in (3, 5) and g.filter_dilation[axis] == 1
    few = inner <= _MOST_INPUTS and terms <= _MOST_TERMS
    if outer <= _MOST_OUTPUTS:
        few = few and terms * outer <= _MOST_PRODUCTS
    else:
        few = few and terms <= (_MOST_SHARED_TERMS if reuses else _MOST_UNREUSED)
        # Tiles have kernels of their own for fours, of 16 and more.
        twos = outer % 4 == 2 and outer <= _MOST_SHARED
        few = few and (twos or (outer % 4 == 0 and inner == 1 and outer < 16))
    there = min(g.N, g.C, g.K, *g.inputs, *g.outputs, *g.taps) > 0
    sample = max(math.prod(g.inputs) * g.C, math.prod(g.outputs) * g.K)
    return few and there and sample < 1 << 31


def dx_of_scalars(problem: Problem) -> bool:
    """f32 of one channel on both sides, or of sequences to one, that `scalars`, which
    is asked before, leaves."""
    g = problem.geometry
    few = g.C == 1 or (sequence(problem) and g.C <= 6)
    flat = taps(problem) > 1 and not depth.is_deep(g)
    return tf32(problem) and plain(problem) and g.K == 1 and few and flat


def dx_of_one_input(problem: Problem) -> bool:
    """f32 of whole fours of outputs, which our tiles give to padded channels of x."""
    g = problem.geometry
    few = g.C == 1 and g.K % 4 == 0 and 16 <= g.K <= 64
    return tf32(problem) and images(problem, 1) and few


def wgrad_to_one(problem: Problem) -> bool:
    """f32 of one tap to one channel, of several."""
    g = problem.geometry
    pointwise = plain(problem) and taps(problem) == 1
    many = 3 <= g.C <= 66 and g.O * g.P * g.Q >= 512
    return tf32(problem) and pointwise and many and g.K == 1


def wgrad_of_short_sequences(problem: Problem) -> bool:
    """f32 of few channels: sums so short that kernels of ours take longer to begin."""
    g = problem.geometry
    short = (1 << 14 if g.C == g.K == 1 else 1 << 13) >= g.N * g.Q
    few = min(g.C, g.K) <= 12 and max(g.C, g.K) <= 64
    # Our tiles are faster: 512 steps of 2->64, five taps, at batch 8 9.0 us, columns
    # 11.3; 2048 of 12->64, three taps, 12.4, 25.
    filled = (1 < g.C < 4 or g.C % 4 == 0) and g.K == 64
    few = few and not (filled and taps(problem) > 1)
    flat = g.H == g.D == g.P == g.O == 1 and plain(problem)
    return tf32(problem) and flat and few and short and taps(problem) <= 5


def wgrad_of_short_products(problem: Problem) -> bool:
    """Of these one tap, or of one channel: folded pixels are no faster."""
    g = problem.geometry
    its = taps(problem) == 1 or g.C == g.K == 1
    return its and wgrad_of_short_sequences(problem)


def volumes_of_few(problem: Problem) -> bool:
    """f32 3x3x3 of some inputs to one output, or of two to some that are no fours."""
    g = problem.geometry
    some = 8 <= g.C <= 12 if g.K == 1 else g.C == 2 and g.K >= 18 and g.K % 4 == 2
    near = g.taps == (3, 3, 3) and g.filter_dilation == (1, 1, 1)
    return tf32(problem) and plain(problem) and near and some
