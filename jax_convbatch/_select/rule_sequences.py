# SPDX-License-Identifier: Apache-2.0
"""Classes of convolutions of sequences that the rule of "auto" tells apart, beside
those of `rule_classes.py`."""

from __future__ import annotations

from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    half,
    plain,
    sequence,
    taps,
    tf32,
)


def half_filled(problem: Problem) -> bool:
    """In 16 bits, long ones of 32 channels and many taps: our tiles copy their pixels
    for each tap, half a box at a time. 65536 steps, taps 9 apart, 12 us, cuDNN 15."""
    g = problem.geometry
    long = sequence(problem) and g.S >= 9 and g.C == g.K == 32
    if problem.op == "wgrad":
        steps = g.Q >= 1 << 16 and g.N * g.Q >= 1 << 18
    else:
        steps = g.Q >= 100_000
    return half(problem) and long and steps


def thin_products(problem: Problem) -> bool:
    """f32 of one tap and few inputs that are no fours, to whole fours of outputs."""
    g = problem.geometry
    flat = g.H == g.D == 1 and taps(problem) == 1 and g.Q >= 1024
    few = g.C <= 40 and g.C % 4 != 0 and g.K <= 64 and g.K % 4 == 0
    return tf32(problem) and plain(problem) and flat and few
