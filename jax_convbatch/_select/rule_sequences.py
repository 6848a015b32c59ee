# SPDX-License-Identifier: Apache-2.0
"""Classes of convolutions of sequences that the rule of "auto" tells apart, beside
those of `rule_classes.py`."""

from __future__ import annotations

from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    half,
    least,
    most,
    odd,
    plain,
    sequence,
    stems,
    taps,
    tf32,
)


def thin(problem: Problem) -> bool:
    """f32 of a few channels; in fprop of 4096 steps and more."""
    few = least(problem) >= 16 and most(problem) <= 20 and sequence(problem)
    long = problem.op == "dgrad" or problem.geometry.Q >= 4096
    return tf32(problem) and few and long


def half_filled(problem: Problem) -> bool:
    """In 16 bits, long ones of 32 channels and many taps: our tiles copy their pixels
    for each tap, half a box at a time."""
    g = problem.geometry
    long = sequence(problem) and g.S >= 9 and g.Q >= 1 << 16
    return half(problem) and long and g.C == g.K == 32


def short(problem: Problem) -> bool:
    """f32 of few channels: what takes long is to start our kernels."""
    g = problem.geometry
    outputs = 40 if g.C <= 12 else 20 if g.C <= 20 else 1
    few = g.C <= 30 and outputs >= g.K and not (g.C == 1 and g.K % 4 == 0)
    steps = 1024 if problem.op == "wgrad" else 2048
    brief = steps >= g.Q and taps(problem) > 1 and g.R == 1
    if stems(problem):
        return False
    return tf32(problem) and sequence(problem) and plain(problem) and few and brief


def thin_products(problem: Problem) -> bool:
    """f32 of one tap and few inputs that are no fours, to whole fours of outputs."""
    g = problem.geometry
    flat = g.H == g.D == 1 and taps(problem) == 1 and g.Q >= 1024
    few = g.C <= 40 and g.C % 4 != 0 and g.K <= 64 and g.K % 4 == 0
    return tf32(problem) and plain(problem) and flat and few


def odd_ones(problem: Problem) -> bool:
    """f32 of some channels that are no fours."""
    some = least(problem) >= 30 and most(problem) <= 40 and taps(problem) > 1
    return odd(problem) and sequence(problem) and plain(problem) and some
