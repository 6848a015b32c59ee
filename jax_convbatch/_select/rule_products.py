# SPDX-License-Identifier: Apache-2.0
"""Classes of 1x1 convolutions, products of matrices, that the rule of "auto" tells
apart."""

from __future__ import annotations

import math

from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import half, least, most, plain, taps, tf32


def pointwise(problem: Problem) -> bool:
    """Of one tap and one step."""
    return taps(problem) == 1 and plain(problem)


def _of_images(problem: Problem) -> bool:
    g = problem.geometry
    return pointwise(problem) and g.O == 1 < g.H


def _between_sectors(problem: Problem) -> bool:
    """16 bits of so many outputs that every second pixel of y begins within one of the
    32 bytes that memory moves at once, as of 24, 40 or 136."""
    return problem.geometry.K % 16 == 8


def wgrad_of_some_products(problem: Problem) -> bool:
    """1x1 in 16 bits of so many channels that a tile's sums are long, and tiles few."""
    g = problem.geometry
    some = least(problem) >= 640 and most(problem) < 1024
    pixels = 1 << 13 <= g.N * g.O * g.P * g.Q <= 1 << 16
    return half(problem) and pointwise(problem) and some and pixels


def products_between_sectors(problem: Problem) -> bool:
    """Images whose pixels our tiles write, and in dgrad read, by halves of sectors. Of
    large images and few channels, tiles whose weights stay in shared memory are ahead
    (sm90/kernels/conv/resident_plan.h); so is our kernel for few channels
    (kernels/skinny)."""
    g = problem.geometry
    its = half(problem) and _of_images(problem) and _between_sectors(problem)
    if not its or not 24 <= g.K < 192 or g.C % 8 != 0 or g.C > 1280:
        return False
    pixels, narrow = g.P * g.Q, 32 < g.K < 64
    if problem.op == "dgrad":
        return narrow and g.C >= 192 and 196 <= pixels < 1024
    resident = pixels >= 1024 and (128 <= g.C < 192 if narrow else g.C <= 256)
    fewest = 24 if g.K >= 72 else 96 if narrow else 192
    return pixels >= 49 and fewest <= g.C and (g.K <= 32 or not resident)


def uneven_wgrad(problem: Problem) -> bool:
    return wgrad_between_sectors(problem) or wgrad_of_uneven_products(problem)


def wgrad_between_sectors(problem: Problem) -> bool:
    """16 bits of 72 channels and more on both sides, of some pixels; or of many
    channels and the last, small images of a network."""
    g = problem.geometry
    if not half(problem) or not _of_images(problem):
        return False
    if g.P * g.Q <= 49:
        small = g.P * g.Q >= 36 and _between_sectors(problem)
        return small and g.C >= 1024 and 24 <= g.K < 192
    uneven = least(problem) % 16 == 8 and 72 <= least(problem) < 192
    some = 1 << 14 <= g.N * g.P * g.Q <= 1 << 17
    return uneven and some and most(problem) < 768


def wgrad_of_uneven_products(problem: Problem) -> bool:
    """f32 of some channels that leave a tenth of our tiles empty, and more, beside
    those of `wgrad_of_f32_products`."""
    g = problem.geometry
    if not tf32(problem) or not _of_images(problem):
        return False
    pixels = g.P * g.Q
    if g.N * pixels < 2048:  # 7x7 768->48 at batch 16 8.4 us, cuDNN 10
        return False
    if 32 < g.K < 64:
        return 49 <= pixels <= 196 and g.C >= 480
    filled = math.prod(c / (64 * math.ceil(c / 64)) for c in (g.C, g.K))
    some = 128 < g.C <= (672 if pixels <= 196 else 480) and 64 < g.K <= 192
    return some and filled <= 0.9 and pixels >= 196


def wgrad_of_f32_products(problem: Problem) -> bool:
    """1x1 of 64 to 128 channels on a side, where our tiles are few; and of many pixels
    and fewer channels, but what has kernels of its own."""
    g = problem.geometry
    its = tf32(problem) and pointwise(problem)
    pixels = g.O * g.P * g.Q
    if _of_images(problem) and 64 <= least(problem) <= 128 and most(problem) <= 512:
        return its and g.N * pixels >= 1024
    own = most(problem) <= 64 and g.C % 32 == g.K % 32 == 0
    between = least(problem) >= 16 and most(problem) <= 160 and not own
    # 66x66 20->20 at batch 32 24 us, cuDNN 18.5.
    return its and between and pixels >= 1 << 12


def small_products(problem: Problem) -> bool:
    """1x1 in 16 bits of small images, that sums over many channels to few. Our kernel
    for them (kernels/skinny) takes longer to begin, and the more, the more channels it
    sums over."""
    g = problem.geometry
    inner, outer = (g.K, g.C) if problem.op == "dgrad" else (g.C, g.K)
    small = 49 <= g.O * g.P * g.Q <= 784
    some = outer <= 32 and 96 <= inner <= 192
    its = half(problem) and pointwise(problem) and g.C % 8 == g.K % 8 == 0
    return its and ((small and some) or _to_sixteen(problem))


def _to_sixteen(problem: Problem) -> bool:
    """fprop of many channels to 16, half of our smallest tile: small images, and larger
    ones of channels that leave a part of a stage empty."""
    g = problem.geometry
    pixels = g.O * g.P * g.Q
    small = 480 <= g.C <= 1280 and 49 <= pixels <= 64
    uneven = 192 < g.C < 480 and g.C % 64 != 0 and 512 <= pixels <= 784
    return problem.op == "fprop" and g.K == 16 and (small or uneven)


def narrow_products(problem: Problem) -> bool:
    """1x1 in 16 bits of many channels to 40 to 56, which half fill our tiles."""
    g = problem.geometry
    its = pointwise(problem) and g.O * g.P * g.Q >= 512
    even = g.C % 8 == g.K % 8 == 0
    return half(problem) and its and even and 32 < g.K < 64 and g.C >= 192
