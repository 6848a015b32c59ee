# SPDX-License-Identifier: Apache-2.0
"""Classes of convolutions that the rule of "auto" tells apart.

A class of fprop and dgrad does not depend on the batch size: the engine, and with it
the bits of a sample, must not.
"""

from __future__ import annotations

import math

from jax_convbatch._plans import columns, depth
from jax_convbatch._plans.planners import Problem


def always(problem: Problem) -> bool:
    return True


def f64(problem: Problem) -> bool:
    return problem.dtype.name == "float64"


def groups(problem: Problem) -> bool:
    return problem.geometry.groups > 1


def tensor_cores(problem: Problem) -> bool:
    """One group, in 16 bits or in f32 as TF32."""
    fast = problem.dtype.itemsize == 2 or problem.precision == 0
    return problem.geometry.groups == 1 and fast


def half(problem: Problem) -> bool:
    return tensor_cores(problem) and problem.dtype.itemsize == 2


def tf32(problem: Problem) -> bool:
    return tensor_cores(problem) and problem.dtype.itemsize == 4


def taps(problem: Problem) -> int:
    g = problem.geometry
    return g.T * g.R * g.S


def sums(problem: Problem) -> int:
    """Products of one sum of y."""
    return taps(problem) * problem.geometry.C


def least(problem: Problem) -> int:
    """Of the numbers of channels of x and y."""
    return min(problem.geometry.C, problem.geometry.K)


def most(problem: Problem) -> int:
    return max(problem.geometry.C, problem.geometry.K)


def sequence(problem: Problem) -> bool:
    g = problem.geometry
    return g.H == g.D == 1 and g.S > 1


def images(problem: Problem, pixels: int) -> bool:
    """Filters of two axes and one step, of results with so many pixels and more."""
    g = problem.geometry
    two = g.T == 1 and g.R > 1 and g.S > 1
    return two and plain(problem) and pixels <= g.P * g.Q


def halos(problem: Problem) -> bool:
    """What has tiles of ours that read x once for all taps (kernels/halo), or nearly
    that: fprop and dgrad of one step, filters up to some 5x5, channels that TMA takes,
    and sums that are not in K slices."""
    g = problem.geometry
    one_step = g.stride == g.input_dilation == (1, 1, 1)
    _, rows, columns = g.filter_dilation
    short = (g.R - 1) * rows <= 4 and (g.S - 1) * columns <= 4
    whole = g.C * problem.dtype.itemsize % 16 == g.K * problem.dtype.itemsize % 16 == 0
    wide = tensor_cores(problem) and whole and least(problem) >= 32
    height, width = (g.H, g.W) if problem.op == "dgrad" else (g.P, g.Q)
    large = height * width > 64 and (height > 1 or g.R == 1)
    return wide and one_step and short and g.R * g.S > 1 and large


def patches(problem: Problem) -> bool:
    """Filters as large as their steps, without padding."""
    g = problem.geometry
    return g.taps == g.stride and g.pad == (0, 0, 0)


def three_axes(problem: Problem) -> bool:
    """That are no two, as the first has taps or a stride and others have, too."""
    g = problem.geometry
    moves = g.T > 1 or g.stride[0] > 1
    return depth.is_deep(g) and moves and depth.flat(g) is None


def volumes(problem: Problem) -> bool:
    """Filters of three axes."""
    g = problem.geometry
    return tensor_cores(problem) and three_axes(problem) and g.T > 1 and g.R * g.S > 1


def many_taps(problem: Problem) -> bool:
    """f32 of larger filters than have halos, of one step, to channels that leave much
    of our widest tiles empty."""
    g = problem.geometry
    many = g.R * g.S >= 25 and g.T == 1 and g.stride == (1, 1, 1)
    wide = g.C if problem.op == "dgrad" else g.K
    filled = least(problem) >= 32 and most(problem) >= 64 and wide % 128 != 0
    return tf32(problem) and many and filled and not halos(problem)


def uneven_depthwise(problem: Problem) -> bool:
    """16 bits, 3x3 and one step, of large images and so many channels that the last of
    our tiles of 32 has but eight."""
    g = problem.geometry
    depthwise = problem.dtype.itemsize == 2 and g.groups == g.C == g.K
    one_step = g.stride == g.filter_dilation == g.input_dilation == (1, 1, 1)
    nine = (g.T, g.R, g.S) == (1, 3, 3)
    uneven = 32 < g.C <= 136 and g.C % 32 == 8
    return depthwise and one_step and nine and uneven and g.P * g.Q >= 10_000


def thin_images(problem: Problem) -> bool:
    """f32 of 32 channels and up to 64x64 pixels, which half fill our tiles; smaller
    images have kernels of their own."""
    g = problem.geometry
    small = 300 <= g.P * g.Q <= 4096 and g.R > 1 and g.S > 1
    return tf32(problem) and g.C == g.K == 32 and small and not depth.is_deep(g)


def uneven_images(problem: Problem) -> bool:
    """f32 of channels that leave much of our tiles empty, as 50, without halos."""
    g = problem.geometry
    uneven = (g.K % 64 != 0 and g.K > 32) or (g.C % 32 != 0 and taps(problem) > 9)
    many = images(problem, 4096) and least(problem) >= 48
    return tf32(problem) and many and uneven and not halos(problem)


def wgrad_of_few_pixels(problem: Problem) -> bool:
    """Of many channels, so that dw is most of what moves."""
    g = problem.geometry
    pixels = g.N * min(math.prod(g.inputs), math.prod(g.outputs))
    weights = taps(problem) * g.C * g.K
    if half(problem):
        most_pixels = 512 if weights >= 8_000_000 else 256
        if weights >= 14_000_000 and g.input_dilation == (1, 1, 1):
            most_pixels = 1024
        some = pixels <= most_pixels and least(problem) >= 512
        return some and taps(problem) > 1
    if taps(problem) == 1:
        many = pixels <= 256 and least(problem) >= 1024
    else:
        many = pixels <= (512 if weights >= 1 << 23 else 256) and least(problem) >= 512
    volume = volumes(problem) and pixels <= 64 <= least(problem) // 4
    return tf32(problem) and (many or volume)


def huge_images(problem: Problem) -> bool:
    """In 16 bits, of 512x512 pixels and more, without halos."""
    wide = most(problem) == 128 and least(problem) >= 64
    return half(problem) and images(problem, 1 << 18) and wide and not halos(problem)


def gradients_of_examples(problem: Problem) -> bool:
    """Filters with more taps than there are outputs, several for each group: what
    `jax.vmap` makes of the filter's gradient. Their columns are few."""
    g = problem.geometry
    wide = g.groups > 1 and g.groups < g.K
    return wide and g.T == g.O == 1 and max(32, g.P * g.Q) <= g.R * g.S


def mapped_stems(problem: Problem) -> bool:
    """Groups of colours and the like to many channels: networks that are mapped over
    seeds. In f32 of large filters alone."""
    g = problem.geometry
    few = g.groups > 1 and 1 < g.C // g.groups <= 4 and g.K // g.groups >= 16
    return few and taps(problem) >= (9 if problem.dtype.itemsize == 2 else 64)


def mapped_scalars(problem: Problem) -> bool:
    """f32 groups of one channel to many, which our kernels give to padded copies:
    dgrad, and fprop of few groups."""
    g = problem.geometry
    one = g.groups > 1 and g.groups == g.C and 8 * g.groups <= g.K
    few = problem.op == "dgrad" or g.groups <= 8
    f32 = problem.dtype.name == "float32"
    return one and few and f32 and 1 < taps(problem) <= 9


def wgrad_of_mapped_stems(problem: Problem) -> bool:
    """f32 of large filters."""
    large = taps(problem) >= 64 and problem.dtype.itemsize == 4
    return mapped_stems(problem) and large


def f32_patches(problem: Problem) -> bool:
    """Patches that are whole columns, of a few pixels and channels, to many."""
    g = problem.geometry
    small = taps(problem) > 1 and sums(problem) <= 64
    few = g.C < 16 and g.K >= 384
    return tf32(problem) and patches(problem) and small and few


def thin_patches(problem: Problem) -> bool:
    """Of few elements to many channels, or in 16 bits of one channel; in f32 wgrad
    alone. Not of several frames, one channel and far steps."""
    g = problem.geometry
    its = half(problem) or (tf32(problem) and problem.op == "wgrad")
    small = taps(problem) > 1 and sums(problem) <= 16 and g.K >= 512
    # Several frames of far steps are read in place.
    several = g.T > 1 and max(g.stride[1:]) > 8
    one = g.C == 1 and sums(problem) >= 64 and half(problem) and not several
    some = problem.op == "wgrad" and _of_some_elements(problem)
    return its and patches(problem) and (small or one or some)


def _of_some_elements(problem: Problem) -> bool:
    """Patches of images, 4x4 of colours, of which columns take little memory."""
    g = problem.geometry
    fewest = 384 if half(problem) else 1024
    few = g.C <= 4 and 16 < sums(problem) <= 64 and fewest <= g.K
    columns = g.N * g.P * g.Q * sums(problem) * problem.dtype.itemsize
    return g.T == 1 < min(g.R, g.S) and few and columns <= 1 << 26


def wgrad_of_small_patches(problem: Problem) -> bool:
    """In 16 bits, images of few elements to fewer channels than have columns."""
    g = problem.geometry
    small = g.T == 1 < min(g.R, g.S) and sums(problem) <= 16 and g.C % 4 == 0
    return half(problem) and patches(problem) and small and 32 <= g.K < 512


def odd_patches(problem: Problem) -> bool:
    """In 16 bits, whose rows of a filter are no multiples of 16 bytes, as 14x14 of
    colours. Columns are no larger than x."""
    odd_rows = problem.geometry.S * problem.geometry.C % 8 != 0
    return half(problem) and patches(problem) and taps(problem) > 1 and odd_rows


def far_strides(problem: Problem) -> bool:
    """Of more steps than TMA takes at once, of columns not far above x."""
    g = problem.geometry
    far = max(g.stride) > 8 and 1 < taps(problem) <= 2 * math.prod(g.stride)
    return tensor_cores(problem) and far


def strided_images(problem: Problem) -> bool:
    """In 16 bits, 3x3 of two steps and large images: fprop of 32 channels, wgrad of up
    to 64 on a side."""
    g = problem.geometry
    strided = g.T == 1 and g.R == g.S == 3 and g.stride == (1, 2, 2)
    if not half(problem) or not strided or g.input_dilation != (1, 1, 1):
        return False
    if problem.op == "wgrad":
        return 32 <= least(problem) <= 64 and g.N * g.P * g.Q >= 1 << 18
    return g.C == 32 >= g.K >= 16 and g.P * g.Q >= 1 << 16


def to_few_outputs(problem: Problem) -> bool:
    """fprop of so many inputs that columns of outputs (`_plans/columns.py`) are fewer
    than x, or in volumes not many more. Not small images; in 16 bits, more outputs
    than ours serve well, and no large images of some inputs."""
    g = problem.geometry
    if not tensor_cores(problem) or not plain(problem) or taps(problem) == 1:
        return False
    f32, pixels = tf32(problem), g.O * g.P * g.Q
    outputs = taps(problem) * g.K  # of the product that makes columns
    if volumes(problem):  # our own kernels copy x for taps of depth
        small = f32 and g.K > 1 and outputs * pixels * 4 <= 1 << 26
        most_outputs = g.C * 7 // 2 if small and g.K <= 4 else g.C * 7 // 4
        fewest = 32 if f32 else 48
        many = fewest <= g.C and g.K <= 8
    else:
        served = not f32 and g.C % 8 == 0  # well, by ours
        several = f32 and 8 < g.K <= 16 and g.C >= 256
        most_outputs = g.C * 5 // 8 if several else g.C
        fewest = 192 if served else 32
        many = several or (fewest <= g.C and g.K <= 8)
        if served and g.C < 320 and pixels >= 1 << 16:
            return False
    found = many and outputs <= most_outputs and g.C * pixels >= 1 << 18
    return found and columns.columns_of_outputs(problem) is not None


def odd(problem: Problem) -> bool:
    """Channels for which our kernels copy x or y with zeros beside them."""
    g = problem.geometry
    return tf32(problem) and (g.C % 4 != 0 or g.K % 4 != 0)


def plain(problem: Problem) -> bool:
    """Of one step."""
    g = problem.geometry
    return g.stride == g.input_dilation == (1, 1, 1)


def stems(problem: Problem) -> bool:
    """fprop, and dgrad of one step, of f32 that a kernel of few inputs has: as `IsStem`
    and `PlanStem` (few_channels/stem_tf32_plan.h), up to seven channels."""
    g, dgrad = problem.geometry, problem.op == "dgrad"
    if problem.op == "wgrad" or (dgrad and not plain(problem)) or not tf32(problem):
        return False
    inputs, outputs = (g.K, g.C) if dgrad else (g.C, g.K)
    rows, row = (g.H, g.Q) if dgrad else (g.P, g.W)
    elements = taps(problem) * inputs
    few = taps(problem) > 1 and inputs <= 7 and elements <= 368 and not depth.is_deep(g)
    near = elements > 64 or rows == 1 or row * inputs <= 4096
    return few and near and outputs >= 16 and outputs % 4 == 0


def wide_stems(problem: Problem) -> bool:
    """Few channels to many: what reads columns takes longer than to write them."""
    g = problem.geometry
    overlapping = g.T == 1 and g.R > g.stride[1] > 1 and g.S > g.stride[2] > 1
    return half(problem) and overlapping and g.C <= 4 and g.K >= 768


def odd_width(problem: Problem) -> bool:
    """dx of 40 to 56 channels, which our tiles fill to 64, without halos."""
    many = taps(problem) > 1 and problem.geometry.K >= 128 and not halos(problem)
    return half(problem) and many and 32 < problem.geometry.C < 64


def cpu_products(problem: Problem) -> bool:
    """1x1 of few channels on the CPU, of several pixels, whose product reads x once."""
    g = problem.geometry
    several = g.is_pointwise and g.output_pixels > 1 and g.groups == 1
    few = most(problem) <= 40 and problem.dtype.itemsize <= 4
    if problem.op == "fprop":
        few = few and g.K >= 5
    elif problem.op == "dgrad":
        few = few and 5 <= least(problem) <= 24
    return several and few
