# SPDX-License-Identifier: Apache-2.0
"""What folded pixels (`_plans/folded.py`) cost in f32, on Hopper GPUs.

In products of the tensor cores for each pixel of y, those with zeros too. What moves
through memory beside them is counted as so many products. The numbers were fitted to
the times of 207 operations, each with several folds: what is chosen by them takes 1.03
times as long as the fastest in the mean (docs/research_log/few_channels.md).
"""

from __future__ import annotations

import math

from jax_convbatch._plans import depth, folded
from jax_convbatch._shapes.geometry import ConvGeometry

_BOX = 32  # channels that a tile sums over at once
_WIDTH = 64  # results of a tile, in channels
_DEEP_WIDTH = 104  # what takes as long as less, of three axes
_WGRAD_WIDTH, _WGRAD_NARROW = 88, 136  # the same of wgrad; of tiles of 32 of its own
_COPIED = 200.0  # an element that is read or written on the way
_PASSED = 90.0  # a result that is looked at afterwards
_STRIPS = 2.0  # a product by the kernels of few channels
_SMALL = 0.5  # the same of kernels of 16 and 32 channels
_FAR = 2.5  # the same of less than a box, by filters that reach further than halos


def cost(op: str, g: ConvGeometry, fold: int) -> float:
    """Of `g`, each pixel of which is `fold` pixels.

    Args:
      op: "fprop", "dgrad" or "wgrad".
      g: the convolution of folded pixels, or of pixels as they are.
      fold: 1 for these.
    """
    inner, outer = (g.K, g.C) if op == "dgrad" else (g.C, g.K)
    slices, copied = g.T, 0.0
    if g.T > 1 and depth.is_deep(g) and _copies_slices(g, inner):
        slices, inner = 1, g.T * inner
        copied += inner + inner / g.T
    taps = slices * g.R * g.S
    if _has_strips(op, g, inner, outer, slices):
        few, many = sorted((inner, outer))
        products = taps * few * max(many, _WIDTH) * _STRIPS
    else:
        copied += sum(c + _rounded(c, 4) for c in (g.C, g.K) if c % 4)
        if op != "wgrad" and outer % 4:
            copied += outer + _rounded(outer, 4)  # by a kernel of its own
        if op == "wgrad":
            least = _WGRAD_WIDTH if outer > 32 else _WGRAD_NARROW
            wide = max(_rounded(outer, _WIDTH), least)
            products = taps * _rounded(inner, 16) * wide
        else:
            least = _DEEP_WIDTH if g.T > 1 and depth.is_deep(g) else _WIDTH
            wide = max(_rounded(outer, _WIDTH), least)
            products = taps * _rounded(inner, _BOX) * wide
            if _is_far(g) and max(inner, outer) < _BOX:
                products *= _FAR
            elif fold == 1 and _is_small(g):
                products *= _SMALL
    passed = outer if fold > 1 and op != "wgrad" else 0
    return (products + copied * _COPIED + passed * _PASSED) / fold


def of_row_ends(g: ConvGeometry, fold: int) -> float:
    """Of copies of rows of `g`, which are no multiples of folded pixels."""
    ends = folded.row_ends(g, fold)
    channels = (g.C if ends["x"] else 0) + (g.K if ends["y"] else 0)
    return channels * _COPIED


def _copies_slices(g: ConvGeometry, channels: int) -> bool:
    """Whether x, or dy, is copied for the taps of depth: of 32 channels and more halos
    are not, nor what fills boxes (`select/volumes.cc`)."""
    boxes, together = math.ceil(channels / _BOX), math.ceil(g.T * channels / _BOX)
    whole = g.C % 4 == g.K % 4 == 0
    return not whole or (channels < _BOX and 3 * g.T * boxes > 4 * together)


def _has_strips(op: str, g: ConvGeometry, inner: int, outer: int, slices: int) -> bool:
    """Few channels to some, as the kernels of `few_channels` take them."""
    if slices > 1 or g.R * g.S == 1:
        return False
    if op == "wgrad":
        few, many = sorted((inner, outer))
        return few <= 4 and many >= 16 and many % 4 == 0
    longest = 64 if depth.is_deep(g) else 368  # sums
    few = inner <= 7 and g.R * g.S * inner <= longest
    return few and outer >= 16 and outer % 4 == 0


def _is_small(g: ConvGeometry) -> bool:
    flat = g.H > 1 and not depth.is_deep(g)  # sequences are slow
    return flat and {g.C, g.K} <= {16, 32} and g.R * g.S <= 9


def _is_far(g: ConvGeometry) -> bool:
    """Whether each tap of a row reads x anew."""
    _, rows, columns = g.filter_dilation
    return (g.R - 1) * rows > 4 or (g.S - 1) * columns > 4


def _rounded(n: int, to: int) -> int:
    return math.ceil(n / to) * to
