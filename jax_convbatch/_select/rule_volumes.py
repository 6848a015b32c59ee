# SPDX-License-Identifier: Apache-2.0
"""Classes of three spatial axes that the rule of "auto" tells apart; the others are in
`rule_classes.py`."""

from __future__ import annotations

from jax_convbatch._plans import depth
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select.rule_classes import (
    half,
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
    """Of one step, of channels that fill the tiles of cuDNN's kernels."""
    g = problem.geometry
    if not volumes(problem) or not g.stride == g.input_dilation == (1, 1, 1):
        return False
    outputs = g.O * g.P * g.Q
    if problem.dtype.itemsize == 2:
        large = g.C == g.K == 64 and outputs >= 1 << 16
        some = problem.op == "dgrad" or outputs > 512
        return (least(problem) >= 192 and some) or large
    if problem.op == "fprop" and outputs <= 1024:
        return False
    if problem.op == "dgrad":
        filled = g.C % 128 == 0 or g.C % 128 >= 96
        some = filled and g.K >= 48 and least(problem) <= 256
        return (some and g.C >= 96) or g.C == g.K == 32
    copies = g.D * g.H * g.W * g.C * g.T * 4
    return least(problem) >= 96 or (least(problem) >= 32 and copies >= 1 << 27)


def _pads_unevenly(problem: Problem) -> bool:
    """As causal layers do. Of one step."""
    g = problem.geometry
    axes = zip(g.inputs, g.outputs, g.taps, g.pad, g.filter_dilation, strict=True)
    return any(
        outputs - 1 + (taps - 1) * dilation + 1 - inputs != 2 * low
        for inputs, outputs, taps, low, dilation in axes
    )


def copied_volumes(problem: Problem) -> bool:
    """In 16 bits, what our kernels do not read in place, in all but small images, and
    taps along depth alone of 16 to 31 channels on one side."""
    g = problem.geometry
    along = g.T > 1 and g.R * g.S == 1 and depth.is_deep(g)
    if half(problem) and along and 16 <= least(problem) < 32:
        return True
    if not three_axes(problem) or not half(problem) or least(problem) < 32:
        return False
    whole = g.C % 64 == 0 and g.K % 64 == 0
    outputs = g.O * g.P * g.Q
    if g.input_dilation != (1, 1, 1):
        return not whole or outputs > (4095 if problem.op == "fprop" else 4096)
    if g.stride[0] > 1 and problem.op == "dgrad" and outputs > 3000:
        return least(problem) >= 96 or not whole
    if whole:
        return g.stride != (1, 1, 1) and least(problem) >= 384
    if problem.op == "fprop" and g.stride == (1, 1, 1):
        if g.C == g.K == 32:
            return False  # our kernels for few channels read x once
        # cuDNN takes no padding that differs between the sides: x is copied.
        if least(problem) < 64 and _pads_unevenly(problem):
            return False
    return outputs > 3000


def strided_f32_volumes(problem: Problem) -> bool:
    g = problem.geometry
    strided = g.stride[1:] != (1, 1) or g.input_dilation != (1, 1, 1)
    some = least(problem) >= 32 or most(problem) >= 128
    few = patches(problem) and g.C <= 16  # have kernels of their own
    return tf32(problem) and three_axes(problem) and strided and some and not few


def few_strided_outputs(problem: Problem) -> bool:
    """Three axes and a stride, so few outputs that columns are small."""
    g = problem.geometry
    strided = g.stride != (1, 1, 1) and g.input_dilation == (1, 1, 1)
    few = g.O * g.P * g.Q <= 64 and least(problem) >= 128
    return volumes(problem) and strided and few


def volumes_of_few_inputs(problem: Problem) -> bool:
    """f32 of colours and the like, of one step, to some channels."""
    g = problem.geometry
    one_step = g.stride == g.input_dilation == (1, 1, 1)
    return tf32(problem) and volumes(problem) and one_step and g.C <= 4 and g.K >= 16


def wgrad_of_volumes(problem: Problem) -> bool:
    g = problem.geometry
    if not volumes(problem):
        return False
    pixels = g.N * g.O * g.P * g.Q
    if problem.dtype.itemsize == 4:
        strided = g.stride != (1, 1, 1) and (least(problem) >= 512 or g.K <= 4)
        few = 4 < most(problem) <= 8
        return few or strided or g.input_dilation != (1, 1, 1)
    if g.stride != (1, 1, 1) or g.input_dilation != (1, 1, 1):
        some = pixels >= 4096 or (least(problem) >= 128 and pixels >= 1024)
        return some and (least(problem) >= 32 or (g.K <= 4 and g.C >= 128))
    whole = g.C % 64 == 0 and g.K % 64 == 0 and 128 <= least(problem) <= 512
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
    return volumes(problem) and problem.geometry.K <= 6 and problem.geometry.C >= 128
