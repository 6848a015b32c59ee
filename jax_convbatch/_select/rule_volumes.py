# SPDX-License-Identifier: Apache-2.0
"""Classes of three spatial axes that the rule of "auto" tells apart; the others are in
`rule_classes.py`."""

from __future__ import annotations

from jax_convbatch._plans import depth
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    half,
    halos,
    least,
    most,
    patches,
    sums,
    tensor_cores,
    tf32,
    three_axes,
    volumes,
)
from jax_convbatch._shapes.geometry import ConvGeometry


def wide_volumes(problem: Problem) -> bool:
    """Large ones of one step and one box of channels on a side, in 16 bits; but for
    wgrad, of filters without halos."""
    g = problem.geometry
    one_step = g.stride == g.input_dilation == (1, 1, 1)
    boxes = least(problem) == 64 and most(problem) <= 128
    if problem.op == "wgrad":
        boxes = boxes and most(problem) == 128
    elif halos(problem):
        return False
    large = boxes and g.O * g.P * g.Q >= 1 << 18
    return volumes(problem) and half(problem) and one_step and large


def _pads_unevenly(problem: Problem) -> bool:
    """As causal layers do. Of one step."""
    g = problem.geometry
    axes = zip(g.inputs, g.outputs, g.taps, g.pad, g.filter_dilation, strict=True)
    return any(
        outputs - 1 + (taps - 1) * dilation + 1 - inputs != 2 * low
        for inputs, outputs, taps, low, dilation in axes
    )


def copied_volumes(problem: Problem) -> bool:
    """In 16 bits, channels that our kernels do not read in place or of which they fill
    boxes up with zeros, in all but small images; dx of transposed layers, of some in
    f32, too; taps along depth alone of 16 to 31 channels on one side; 48 channels to
    colours, and 32 or 48 to fewer of a stride."""
    if _transposed_patches(problem):
        return True
    g = problem.geometry
    fprop, one_step = problem.op == "fprop", g.stride == (1, 1, 1)
    along = g.T > 1 and g.R * g.S == 1 and depth.is_deep(g) and one_step
    if half(problem) and along and fprop and 16 <= least(problem) < 32:
        return True
    if not three_axes(problem) or not half(problem):
        return False
    outputs = g.O * g.P * g.Q
    if fprop and not one_step and g.C in (32, 48) and 16 <= g.K < 32:
        return outputs > 3000
    if fprop and one_step and g.C == 48 and g.K <= 4:
        return True
    if least(problem) < 32:
        return False
    if g.input_dilation != (1, 1, 1):
        filled = g.K % 64 == 0 or g.K == 32
        return not fprop and outputs > 4096 and not filled
    if not one_step:
        return fprop and least(problem) < 48 and outputs > 3000
    if g.C % 8 != 0 or g.K % 8 != 0:  # one copy, with zeros beside the channels
        return False
    # Half of a box of 32 channels is zeros.
    if halos(problem) and (g.C if fprop else g.K) > 32:
        return False
    # cuDNN takes no padding that differs between the sides: x is copied, or dx. dx of
    # 9x360x320 64->32, padded before it, 585 us so, 371 by ours.
    if _pads_unevenly(problem):
        return False
    if fprop and least(problem) >= 64:
        return False
    if not fprop and g.C % 64 == 0 and g.K % 64 == 0:
        return False
    return outputs > (1 << 17 if g.C == g.K == 32 else 3000)


def _transposed_patches(problem: Problem) -> bool:
    """dx in f32 of 2x2x2 filters whose outputs have one tap each, from 65 to 128
    channels; from 64 of 32x32x32 128->64 ours take 43 to 49 us, cuDNN 54."""
    g = problem.geometry
    two, one = (2, 2, 2), (1, 1, 1)
    patches = g.taps == g.input_dilation == two and g.stride == g.filter_dilation == one
    some = 64 < g.K <= 128 <= g.C and g.D * g.H * g.W >= 1 << 12
    return tf32(problem) and problem.op == "dgrad" and patches and some


def strided_to_few(problem: Problem) -> bool:
    """Of a stride to colours and the like, and so large that a copy of x takes long;
    and dx in f32 of many channels, of taps and a stride along depth alone, where half
    of our tiles have two taps, and half one."""
    g, dgrad = problem.geometry, problem.op == "dgrad"
    if not depth.is_deep(g):
        return _strided_images_to_few(problem)
    if not tensor_cores(problem):
        return False
    if g.input_dilation != (1, 1, 1) or (dgrad and half(problem)):
        return False
    if _strides_along_depth(g):
        return dgrad and most(problem) >= 512
    large = g.C * g.D * g.H * g.W >= 1 << 23
    return g.stride != (1, 1, 1) and g.K <= 4 and g.C >= 32 and large


def _strided_images_to_few(problem: Problem) -> bool:
    """The same of images in fprop, in 16 bits, of many channels."""
    g = problem.geometry
    its = half(problem) and problem.op == "fprop" and not patches(problem)
    strided = min(g.stride[1:]) >= 2 and g.input_dilation == (1, 1, 1)
    many = g.C >= 512 and g.C * g.D * g.H * g.W >= 1 << 26
    return its and strided and many and g.T == 1 < min(g.R, g.S) and g.K <= 4


def _strides_along_depth(g: ConvGeometry) -> bool:
    return g.T > 1 and g.R * g.S == 1 and g.stride == (2, 1, 1)


def few_outputs_along_depth(problem: Problem) -> bool:
    """In 16 bits, taps and a stride along depth alone, to colours and the like."""
    g = problem.geometry
    its = half(problem) and _strides_along_depth(g)
    return its and g.K <= 4 and g.C >= 128


def few_strided_outputs(problem: Problem) -> bool:
    """dx in f32 of three axes and a stride, from so few outputs that columns are
    small."""
    g = problem.geometry
    strided = g.stride != (1, 1, 1) and g.input_dilation == (1, 1, 1)
    few = g.O * g.P * g.Q <= 64 and least(problem) >= 128
    return tf32(problem) and volumes(problem) and strided and few


def one_output_of_volumes(problem: Problem) -> bool:
    """f32, of some channels: columns of outputs are not many more."""
    g = problem.geometry
    few = g.K == 1 and g.C >= 16 and g.T * g.R * g.S <= 4 * g.C
    return tf32(problem) and volumes(problem) and few


def wgrad_of_volumes(problem: Problem) -> bool:
    """In 16 bits; taps and a stride along depth alone are among them."""
    g = problem.geometry
    if not half(problem):
        return False
    if _strides_along_depth(g):
        # Where ours wait for zeros; of 17x32x64 384 3x1x1 s2x1x1 30 us, cuDNN 48.
        return least(problem) >= 256 and g.O <= 4
    if not volumes(problem):
        return False
    pixels = g.N * g.O * g.P * g.Q
    transposed, strided = g.input_dilation != (1, 1, 1), g.stride != (1, 1, 1)
    if transposed:
        # Of two boxes by one, dw is few tiles; of 320 channels, tiles are narrow.
        few = most(problem) == 2 * least(problem) == 128
        few = few or (most(problem) % 128 != 0 and pixels >= 1 << 15)
        whole = g.C % 64 == g.K % 64 == 0 and not few
        return least(problem) >= 32 and 4096 <= pixels < 1 << 20 and not whole
    if strided:
        # Where both are uneven cuDNN's first are slow from 128 channels or 32768 pixels
        # on: kernels of mma.sync, and other clusters. Where slices have no steps ours
        # are ahead from there on: 5x180x256 192->96 at batch 2 264 us, cuDNN 309.
        small = pixels < 1 << 15
        even = g.C % 64 == 0, g.K % 64 == 0
        one = any(even) and (small or g.stride[0] > 1)
        both = not any(even) and small and most(problem) < 128
        some = least(problem) >= 96 and not all(even) and (one or both)
        copied = 32 <= least(problem) < 48 and pixels >= 1 << 14
        return copied or (some and pixels >= 4096) or (g.K <= 4 and g.C >= 128)
    whole = g.C % 64 == 0 and g.K % 64 == 0 and 256 <= least(problem) <= 512
    # What blocks read at a time, which a large image takes out of the L2. Not of
    # three slices, which have tiles that copy less of x (select/wgrad_plan.cc).
    read = 2 * (g.T * g.C + g.K) * g.P * g.Q
    return whole and (4096 <= pixels <= 8192 or (read >= 1 << 26 and g.O > 3))


def deep_patches(problem: Problem) -> bool:
    """Of several frames and few channels: whole ones in 16 bits, and in f32 ones that
    overlap, of large images; in wgrad to many channels, of several samples. Not whole
    ones of more steps than TMA takes: of these one copy of x makes patches of two axes,
    which ours are fast for."""
    g = problem.geometry
    if half(problem):
        return _are_deep(problem) and patches(problem) and max(g.stride) <= 8
    large = g.P * g.Q >= 1 << 13
    many = g.K >= 192 and g.N >= 4 if problem.op == "wgrad" else large
    return many and overlapping_patches(problem)


def overlapping_patches(problem: Problem) -> bool:
    """f32 patches of several frames that overlap."""
    overlap = problem.geometry.stride[1] > 2 and not patches(problem)
    return tf32(problem) and overlap and _are_deep(problem)


def _are_deep(problem: Problem) -> bool:
    g = problem.geometry
    few = g.T > 1 and g.R * g.S > 1 and g.C <= 4 and g.stride[0] == g.T
    return few and sums(problem) >= 256
