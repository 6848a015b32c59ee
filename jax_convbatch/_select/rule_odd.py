# SPDX-License-Identifier: Apache-2.0
"""Classes of f32 channels that are no fours, or one, that the rule of "auto" tells
apart; the others are in `rule_classes.py`."""

from __future__ import annotations

from jax_convbatch._plans import depth
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    images,
    least,
    most,
    odd,
    plain,
    sequence,
    stems,
    taps,
    tf32,
)


def odd_products(problem: Problem) -> bool:
    """f32 1x1 of some channels that are no fours, of many pixels."""
    g = problem.geometry
    some = least(problem) >= 32 and most(problem) <= 80 and g.O * g.P * g.Q >= 1 << 14
    return odd(problem) and plain(problem) and taps(problem) == 1 and some


def odd_scalars(problem: Problem) -> bool:
    """1x1, whose columns are x, and short sequences of one channel."""
    g = problem.geometry
    few = g.C <= 80 and (g.K >= 8 or g.K in (1, g.C) or depth.is_deep(g))
    pointwise = few and g.K % 4 != 0 and taps(problem) == 1
    pointwise = pointwise and g.O * g.P * g.Q >= 256
    scalars = sequence(problem) and g.C == g.K == 1 and g.Q <= 2048
    return odd(problem) and plain(problem) and (pointwise or scalars)


def dx_of_few_odd_inputs(problem: Problem) -> bool:
    """Of two axes: our tiles fill columns of dy with zeros, or dx."""
    g = problem.geometry
    few = 2 <= g.C <= 6 and g.K >= 5 and taps(problem) > 1
    return odd(problem) and images(problem, 1024) and few


def dx_of_one_input(problem: Problem) -> bool:
    """f32 of whole fours of outputs, which our tiles give to padded channels of x."""
    g = problem.geometry
    few = g.C == 1 and g.K % 4 == 0 and g.K <= 64 and taps(problem) > 1
    return tf32(problem) and plain(problem) and few and not depth.is_deep(g)


def few_odd_channels(problem: Problem) -> bool:
    """Of several taps along one or two axes. One input channel has strips where y
    needs no copy; for sequences of even numbers cuDNN makes copies, too."""
    g = problem.geometry
    flat = not depth.is_deep(g) and taps(problem) > 1 and not (g.K == 1 and g.H == 1)
    most_outputs = 64 if g.C > 8 else 40  # few inputs have kernels of their own
    few = g.C <= 12 and most_outputs >= g.K and (g.C % 4 != 0 or g.K == 1)
    few = few or (g.K == 1 and g.C <= 20 and taps(problem) >= 25)
    own = g.C == 1 and (g.K % 4 == 0 or g.K == 1)
    own = own or (sequence(problem) and g.C % 2 == 0)
    own = own or stems(problem)
    return odd(problem) and plain(problem) and flat and few and not own


def odd_channels(problem: Problem) -> bool:
    """Of two axes, of some channels on both sides, neither in fours; dx of few, which
    leave half of our tiles empty, or of large images."""
    g = problem.geometry
    between = least(problem) >= 30 and most(problem) <= 80
    if problem.op == "dgrad" and g.C > 40 and not images(problem, 8192):
        return False
    odd = g.C % 4 != 0 and g.K % 4 != 0
    return tf32(problem) and images(problem, 1) and between and odd


def wgrad_of_odd_scalars(problem: Problem) -> bool:
    """1x1, of few channels."""
    pointwise = taps(problem) == 1 and most(problem) <= 64
    return odd(problem) and plain(problem) and pointwise


def wgrad_of_few_odd_channels(problem: Problem) -> bool:
    """Of two axes and more, and of some products."""
    g = problem.geometry
    few = 1 < g.C <= 10 and 1 < g.K <= 40 and g.C % 4 != 0
    strips = g.C <= 4 and g.K >= 16 and g.K % 4 == 0  # our own kernels
    large = g.N * g.O * g.P * g.Q >= 1 << 14 and g.H > 1
    return odd(problem) and plain(problem) and few and large and not strips
