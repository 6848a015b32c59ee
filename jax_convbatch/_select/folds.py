# SPDX-License-Identifier: Apache-2.0
"""How many pixels of a row are folded into one (`_plans/folded.py`), on Hopper GPUs.

A tile multiplies whole boxes of input channels, 128 bytes, by 64 output channels at
least. What a fold costs is counted so: products with zeros included, for each pixel of
y. Measurements say how much less it has to be, for what comes with it: a filter of
zeros and, in fprop and dgrad, a pass over the result. They are in the research log
(docs/research_log/few_channels.md#folded-pixels).
"""

from __future__ import annotations

import math

from jax_convbatch._native import targets
from jax_convbatch._plans import folded
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import rule_classes as classes
from jax_convbatch._shapes.geometry import ConvGeometry

_NARROWEST = 64  # output channels of a tile
# Elements of a sample's larger side: smaller ones wait for launches.
LEAST_ELEMENTS = 1 << 16


def fold_of(problem: Problem) -> int:
    """How many pixels are folded; 1 where none are.

    As `rules.line`, it does not depend on the batch size.
    """
    if not problem.config and targets.is_hopper() and _may(problem):
        return _fold(problem)
    return 1


def folds(problem: Problem) -> bool:
    return fold_of(problem) > 1


def _may(problem: Problem) -> bool:
    """Whether a fold is worth asking about."""
    g = problem.geometry
    plain = g.stride[2] == 1 and g.input_dilation == (1, 1, 1) and g.groups == 1
    if not plain or not classes.tensor_cores(problem) or g.D > 1:
        return False
    if problem.out_dtype != problem.dtype or min(g.C, g.K) < 2:
        return False
    pixels = max(g.D * g.H * g.W, g.O * g.P * g.Q)
    return pixels * max(g.C, g.K) >= LEAST_ELEMENTS and not classes.stems(problem)


def _fold(problem: Problem) -> int:
    g, op, item = problem.geometry, problem.op, problem.dtype.itemsize
    whole = _is_whole(g, item)
    found = {1: _cost(g, 1, item)}
    for fold in folded.FOLDS:
        other = folded.geometry(g, fold)
        if other is not None and _is_whole(other, item):
            found[fold] = _cost(g, fold, item)
    best = min(found, key=lambda fold: (found[fold], -fold))
    if best == 1:
        best = min((f for f in found if f > 1), key=lambda f: found[f], default=1)
    # Kernels of 16 channels, where the folded ones are so many.
    if item == 4 and op != "wgrad" and g.C == g.K and 16 // g.C in found:
        best = max(best if g.C > 8 else 1, 16 // g.C)
    return best if found[best] <= _most(problem, whole) * found[1] else 1


def _most(problem: Problem, whole: bool) -> float:
    """The cost of a fold over that of none, at the most."""
    g, op, item = problem.geometry, problem.op, problem.dtype.itemsize
    few, many = sorted((g.C, g.K))
    if op == "wgrad":
        if item == 4:
            if classes.few_scalars(problem):
                return 0
            return (1.0 if many <= 32 else 0) if whole else 2.0
        if not whole and many > 16:
            return 1.6
        return 0.5 if few >= 12 or many <= 8 else 0
    if problem.geometry.taps == (1, 1, 1):
        return 0
    if item == 4:
        if whole:
            return 0.5 if many <= 12 else 0.49
        return 1.6 if op == "fprop" else 2.0
    if few >= 16 and whole:
        return 0
    return 0.25


def _is_whole(g: ConvGeometry, item: int) -> bool:
    """Whether pixels are multiples of 16 bytes, as TMA takes them."""
    return g.C * item % 16 == g.K * item % 16 == 0


def _cost(g: ConvGeometry, fold: int, item: int) -> float:
    """Products for each pixel of y, those with zeros too; the same in three operations."""
    other = g if fold == 1 else folded.geometry(g, fold)
    assert other is not None  # whoever calls has asked
    box = 128 // item
    inputs = math.ceil(other.C / box) * box
    outputs = math.ceil(other.K / _NARROWEST) * _NARROWEST
    return other.S * inputs * outputs / fold
