# SPDX-License-Identifier: Apache-2.0
"""How many pixels of a row are folded into one (`_plans/folded.py`), and whether taps
are channels (`_plans/tap_columns.py`), on Hopper GPUs.

In f32 a model says what a fold costs (`fold_cost.py`). In 16 bits a fold has to
multiply less than none by what comes with it, a filter of zeros and a pass over the
result. How much less was measured: docs/research_log/few_channels.md#folded-pixels.
"""

from __future__ import annotations

import math

from jax_convbatch._native import targets
from jax_convbatch._plans import depth, folded
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import fold_cost
from jax_convbatch._select import rule_classes as classes
from jax_convbatch._select import rule_odd as odd
from jax_convbatch._shapes.geometry import ConvGeometry

_MOST = 80  # channels that were measured
_WIDEST, _WIDEST_OF_HALF = 256, 160  # channels of folded pixels
# Elements of a sample of x or y: where there are fewer, launches are the time.
_LEAST_OF_ODD, _LEAST, _LEAST_OF_HALF = 1 << 8, 1 << 13, 1 << 18
_BETTER = 0.95  # what a fold costs in f32 over what none does, at the most


def fold_of(problem: Problem) -> int:
    """How many pixels are folded; 1 where none are.

    As `rules.line`, it does not depend on the batch size.
    """
    if problem.config or not targets.is_hopper() or not _may(problem):
        return 1
    g, op, item = problem.geometry, problem.op, problem.dtype.itemsize
    if _has_residues(problem):
        return _fold_of_residues(g)
    if _is_pointwise(problem):
        return _fold_of_pointwise(g)
    cost = fold_cost.cost if item == 4 else _cost_of_half
    costs = {1: cost(op, g, 1)}
    for fold in folded.FOLDS:
        other = folded.geometry(g, fold)
        if other is None or (item == 2 and (other.C % 8 or other.K % 8)):
            continue
        ends = sum(folded.row_ends(g, fold).values())
        # Copies, for which a limit may have no room.
        if ends and (item == 2 or problem.workspace_limit is not None):
            continue
        widest = _WIDEST if item == 4 or _is_dilated_sequence(g) else _WIDEST_OF_HALF
        if len(costs) == 1 or max(other.C, other.K) <= widest:
            costs[fold] = cost(op, other, fold)
            costs[fold] += fold_cost.of_row_ends(g, fold)
    if len(costs) == 1:
        return 1
    best = min((f for f in costs if f > 1), key=lambda f: (costs[f], -f))
    if _has_small_kernel(problem) and 2 in costs:
        best = 2
    most = _BETTER if item == 4 else _most_of_half(problem)
    return best if costs[best] <= most * costs[1] else 1


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
    if odd.scalars(problem):
        return False
    plain = g.stride[2] == 1 and g.input_dilation == (1, 1, 1)
    if min(g.H, g.W, g.P, g.Q, g.R, g.S) < 1:  # nothing to sum, or nowhere
        return False
    if _has_residues(problem) or _is_pointwise(problem):
        return True
    if not plain or not classes.tensor_cores(problem):
        return False
    if problem.out_dtype != problem.dtype or max(g.C, g.K) > _MOST:
        return False
    half = problem.dtype.itemsize == 2
    if problem.op == "wgrad":
        # Sums of `fold` entries of 16 bits would be rounded more than once.
        if half:
            return False
    elif g.R * g.S == 1:  # a pass costs what they do
        return False
    if half and g.D > 1:
        volume = classes.volumes(problem) and min(g.taps) >= 3
        return volume and g.C == g.K == 32 and g.H * g.W >= 48 * 48
    if min(g.C, g.K) < 2 and (half or _has_columns(problem)):
        return False
    whole = g.C % 4 == g.K % 4 == 0
    if _is_stem(problem) or (g.R * g.S == 1 and whole and min(g.C, g.K) >= 16):
        return False
    elements = max(g.D * g.H * g.W, g.O * g.P * g.Q) * max(g.C, g.K)
    if half and max(g.C, g.K) > 8:
        return elements >= _LEAST_OF_HALF
    return elements >= (_LEAST if whole else _LEAST_OF_ODD)


def _has_residues(problem: Problem) -> bool:
    """dgrad of two steps along a row in 16 bits, of up to 32 channels: those of a
    residue class fill half of a tile at the most, folded pixels have one class."""
    g = problem.geometry
    few = min(g.C, g.K) >= 16 and max(g.C, g.K) <= 32
    its = classes.half(problem) and problem.op == "dgrad" and g.R * g.S > 1
    whole = g.C % 8 == g.K % 8 == 0
    steps = g.stride[2] == 2 and g.input_dilation == (1, 1, 1)
    same = problem.out_dtype == problem.dtype
    return its and few and whole and steps and same


def _fold_of_residues(g: ConvGeometry) -> int:
    """So many pixels that theirs fill a box of 64 channels, or most of it."""
    fold = 4 if g.K == 16 else 2
    if folded.geometry(g, fold) is None or any(folded.row_ends(g, fold).values()):
        return 1
    return fold


def _is_pointwise(problem: Problem) -> bool:
    """fprop and dgrad of one tap in f32, of few and odd channels and many pixels. One
    output of many inputs has columns in fprop."""
    g = problem.geometry
    if problem.op == "fprop" and g.K == 1 and g.C >= 30:
        return False
    its = classes.odd(problem) and problem.op != "wgrad" and g.is_pointwise
    few = g.groups == 1 and 0 < min(g.C, g.K) <= 12 and max(g.C, g.K) <= 34
    same = problem.out_dtype == problem.dtype
    return its and few and same and g.D * g.H * g.W >= 1 << 12


def _fold_of_pointwise(g: ConvGeometry) -> int:
    """The least fold with channels in fours, and with 16 of them on one side. At least
    four pixels where one side has many channels."""
    most, pixels = max(g.C, g.K), g.D * g.H * g.W
    for fold in folded.FOLDS:
        if pixels % fold:
            break
        fours = fold * g.C % 4 == fold * g.K % 4 == 0
        enough = fold * most >= 16 and (most < 30 or fold >= 4)
        largest = 2 * fold * most > 136 or pixels % (2 * fold)
        if fours and (enough or largest):
            return fold
    return 1


def _has_columns(problem: Problem) -> bool:
    """Sequences to one channel that have columns: of many channels, or wgrad of one."""
    g, many, long = problem.geometry, 24, 4096
    if g.D * g.H > 1 or g.K > 1:
        return False
    if problem.op == "wgrad":
        return g.C == 1 and long >= g.Q
    return problem.op == "fprop" and many <= g.C


def _is_stem(problem: Problem) -> bool:
    """f32 of few inputs, or dgrad of few outputs: there are kernels for it, strips. Of
    three axes the taps of depth are channels."""
    g, op = problem.geometry, problem.op
    few, many = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    most = 7 if op != "wgrad" else 4 if many > 16 else 3
    deep = depth.is_deep(g)
    if deep and g.T * g.R * g.S * few > 64:
        return False
    f32 = problem.dtype.itemsize == 4
    return f32 and few * (g.T if deep else 1) <= most and many >= 16 and many % 4 == 0


def _has_small_kernel(problem: Problem) -> bool:
    """Whether a kernel of ours is fast for 16 channels of folded pixels."""
    g = problem.geometry
    small = g.C == g.K == 8 and g.R * g.S <= 25 and g.H > 1 == g.D
    return small and problem.dtype.itemsize == 4 and problem.op != "wgrad"


def _is_dilated_sequence(g: ConvGeometry) -> bool:
    return g.H == 1 and g.filter_dilation[2] > 1 and g.C == g.K and g.C in (16, 24)


def _most_of_half(problem: Problem) -> float:
    """The cost of a fold in 16 bits over that of none, at the most."""
    g = problem.geometry
    few = min(g.C, g.K)
    whole = g.C % 8 == g.K % 8 == 0
    if g.D > 1:
        return 0.5
    if _is_dilated_sequence(g):
        return 0.6 if few == 16 else 0.85
    return 0.15 if few >= 16 and whole else 0.2 if problem.op == "fprop" else 0.25


def _cost_of_half(op: str, g: ConvGeometry, fold: int) -> float:
    """Products along a row of `g`, whose pixels are `fold`, for each of these: of whole
    boxes of 64 channels by 64 others at least."""
    box = 64
    inner, outer = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    sums = math.ceil(inner / box) * box * g.S
    return sums * math.ceil(outer / box) * box / fold
