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
    pointwise = pointwise and g.O * g.P * g.Q >= 128
    scalars = sequence(problem) and g.C == g.K == 1 and g.Q <= 2048
    return odd(problem) and plain(problem) and (pointwise or scalars)


def dx_of_one_input(problem: Problem) -> bool:
    """f32 of whole fours of outputs, which our tiles give to padded channels of x."""
    g = problem.geometry
    few = g.C == 1 and g.K % 4 == 0 and 16 <= g.K <= 64
    return tf32(problem) and images(problem, 1) and few


def wgrad_to_one(problem: Problem) -> bool:
    """f32 of one tap to one channel."""
    g = problem.geometry
    pointwise = plain(problem) and taps(problem) == 1
    many = g.C == 1 or (g.C <= 66 and g.O * g.P * g.Q >= 512)
    return tf32(problem) and pointwise and many and g.K == 1
