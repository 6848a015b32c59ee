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
    boxes up with zeros, in all but small images; dx of transposed layers; taps along
    depth alone of 16 to 31 channels on one side; one strided slice to channels that
    fill half of our last tile."""
    g = problem.geometry
    fprop, one_step = problem.op == "fprop", g.stride == (1, 1, 1)
    along = g.T > 1 and g.R * g.S == 1 and depth.is_deep(g) and one_step
    if half(problem) and along and fprop and 16 <= least(problem) < 32:
        return True
    if not three_axes(problem) or not half(problem) or least(problem) < 32:
        return False
    outputs = g.O * g.P * g.Q
    if g.input_dilation != (1, 1, 1):
        filled = g.K % 64 == 0 or g.K == 32
        return not fprop and outputs > 4096 and not filled
    if not one_step:
        wide = g.D == 1 and g.K % 64 == 32 and g.C >= 128
        return fprop and (least(problem) < 48 or wide) and outputs > 3000
    # Half of a box of 32 channels is zeros.
    if halos(problem) and (g.C if fprop else g.K) > 32:
        return False
    if fprop:
        # cuDNN takes no padding that differs between the sides: x is copied.
        if least(problem) >= 64 or _pads_unevenly(problem):
            return False
    elif g.C % 64 == 0 and g.K % 64 == 0:
        return False
    return outputs > (1 << 17 if g.C == g.K == 32 else 3000)


def strided_f32(problem: Problem) -> bool:
    """f32 of a stride to colours and the like; and dx of many channels, of taps and a
    stride along depth alone, where half of our tiles have two taps, and half one."""
    g = problem.geometry
    if not tf32(problem) or not depth.is_deep(g) or g.input_dilation != (1, 1, 1):
        return False
    along = g.T > 1 and g.R * g.S == 1 and g.stride == (2, 1, 1)
    if problem.op == "dgrad" and along and most(problem) >= 512:
        return True
    return g.stride != (1, 1, 1) and g.K <= 4 and g.C >= 32


def few_outputs_along_depth(problem: Problem) -> bool:
    """In 16 bits, taps and a stride along depth alone, to colours and the like."""
    g = problem.geometry
    along = g.T > 1 and g.R * g.S == 1 and g.stride == (2, 1, 1)
    return half(problem) and along and g.K <= 4 and g.C >= 128


def few_strided_outputs(problem: Problem) -> bool:
    """Of three axes and a stride, so few outputs that columns are small: dgrad in f32,
    fprop in 16 bits."""
    g, dgrad = problem.geometry, problem.op == "dgrad"
    strided = g.stride != (1, 1, 1) and g.input_dilation == (1, 1, 1)
    most_outputs, channels = (64, 128) if dgrad else (32, 256)
    few = most_outputs >= g.O * g.P * g.Q and least(problem) >= channels
    its = tf32(problem) if dgrad else half(problem)
    return its and volumes(problem) and strided and few


def volumes_of_few_inputs(problem: Problem) -> bool:
    """f32 of colours and the like, of one step, to some channels."""
    g = problem.geometry
    one_step = g.stride == g.input_dilation == (1, 1, 1)
    return tf32(problem) and volumes(problem) and one_step and g.C <= 4 and g.K >= 16


def one_output_of_volumes(problem: Problem) -> bool:
    """f32, so small that columns are few."""
    g = problem.geometry
    few = g.K == 1 and g.C <= 64 and g.O * g.P * g.Q < 30000
    return tf32(problem) and volumes(problem) and few


def wgrad_of_volumes(problem: Problem) -> bool:
    g = problem.geometry
    if not volumes(problem):
        return False
    pixels = g.N * g.O * g.P * g.Q
    transposed, strided = g.input_dilation != (1, 1, 1), g.stride != (1, 1, 1)
    if problem.dtype.itemsize == 4:
        few = 4 < most(problem) <= 8
        return few or (strided and g.K <= 4)
    if transposed:
        whole = g.C % 64 == g.K % 64 == 0
        return least(problem) >= 32 and 4096 <= pixels < 1 << 20 and not whole
    if strided:
        halves = least(problem) >= 96 and (g.C % 128 != 0 or g.K % 128 != 0)
        copied, wide = 32 <= least(problem) < 48, least(problem) >= 192 or halves
        return pixels >= 4096 and (copied or wide or (g.K <= 4 and g.C >= 128))
    whole = g.C % 64 == 0 and g.K % 64 == 0 and 256 <= least(problem) <= 512
    return whole and pixels >= 4096


def deep_patches(problem: Problem) -> bool:
    """Of several frames and few channels; in f32 ones that overlap, too."""
    g = problem.geometry
    few = g.T > 1 and g.R * g.S > 1 and g.C <= 4 and g.stride[0] == g.T
    whole = patches(problem) or (tf32(problem) and g.stride[1] > 2)
    return tensor_cores(problem) and few and whole and sums(problem) >= 256


def deep_whole_patches(problem: Problem) -> bool:
    return patches(problem) and deep_patches(problem)


def few_outputs(problem: Problem) -> bool:
    inputs = problem.geometry.C
    many = inputs == 48 or inputs >= 128 if half(problem) else inputs >= 256
    return volumes(problem) and problem.geometry.K <= 6 and many
