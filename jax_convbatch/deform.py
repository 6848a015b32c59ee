# SPDX-License-Identifier: Apache-2.0
"""deform_conv: deformable convolution, v1 and modulated v2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._api import misfits
from jax_convbatch._api.arguments import (
    channels_last,
    check_arrays,
    check_int,
    conv_padding,
    per_axis,
    spatial_axes,
)
from jax_convbatch._api.canonical import geometry_of, operand, precision_problem
from jax_convbatch._api.layer import per_channel
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import (
    Activation,
    ArrayLike,
    DimensionNumbers,
    Ints,
    Padding,
    PrecisionLike,
)
from jax_convbatch._deform import plan as deform_plan
from jax_convbatch._deform.forward import forward
from jax_convbatch._deform.params import DeformParams
from jax_convbatch._layers import activations
from jax_convbatch._native import targets
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._select import plan

__all__ = ["deform_conv", "from_torch"]


def __dir__() -> list[str]:
    return sorted(__all__)


@with_hints()
def deform_conv(
    x: ArrayLike,
    offset: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    strides: Ints = 1,
    padding: Padding = "SAME",
    dilation: Ints = 1,
    groups: int = 1,
    offset_groups: int = 1,
    activation: Activation = None,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> jax.Array:
    """Deformable convolution: each tap reads x at its position plus an offset.

    This is torchvision's `deform_conv2d`, on channels-last arrays.

    With base(p, r) = p * stride - padding + r * dilation along each axis, and
    channel c in offset group g = c // (C / offset_groups),

        y[n, p, q, k] = bias[k] + sum over r, s, c of
            w[r, s, c, k] * mask[n, p, q, g, r, s] *
            x[n, base(p, r) + offset[n, p, q, g, r, s, 0],
                 base(q, s) + offset[n, p, q, g, r, s, 1], c]

    x at a real position is interpolated between the four pixels around it, and pixels
    outside the image are 0. A position outside [-1, H) x [-1, W) gives 0 whatever the
    mask, and so does one that is infinite or NaN; the derivatives with respect to its
    offset and mask are 0. Where an offset is a whole number, the derivative with
    respect to it is the one from the right.

    Every mode and order of differentiation works; for offsets, away from whole numbers.
    All results, the gradient of x included, have the same bits on every run. A sample's
    y and dx do not depend on the batch.

    Args:
      x: [N, H, W, C]; f64, f32, bf16 or f16.
      offset: [N, P, Q, offset_groups * R * S * 2], in pixels, with the offset groups
        outermost, then the taps, then (h, w); in the dtype of x or f32.
      w: [R, S, C / groups, K], dtype of x.
      bias: [K] in a floating dtype, or None. It is cast to the dtype of x.
      mask: [N, P, Q, offset_groups * R * S] (DCNv2), dtype of x or f32, or None.
      strides, padding, dilation, groups, precision: as in `conv`.
      offset_groups: groups of channels of x with offsets of their own.
      activation: None, a name that `conv_bias_act` knows, or a function.
      dimension_numbers: of x, w and y, as in `conv`; offset and mask have their
        axes in y's order. ("NCHW", "OIHW", "NCHW") takes PyTorch's arrays.
      algorithm: "auto"; "im2col_gemm": samples into an im2col matrix, then multiplies;
        "xla": composed of `jax.lax` gathers, on any platform. A named engine is never
        replaced by another.
      workspace_limit: bytes that the im2col matrix may take. If the batch needs more,
        it is processed in slices, with the same bits. None: as in
        `conv_general_dilated`.

    Returns:
      [N, P, Q, K] in the dtype of x. Sums, offsets and masks are computed in f32
      (f64 for f64). The bias is added to the rounded sum, or, in kernels that add it
      as they store, before rounding.

    Raises:
      ValueError: x does not have two spatial axes; offset or mask has the wrong shape
        or dtype, or bias the wrong shape; offset_groups does not divide C; the
        activation or algorithm is unknown or cannot run here; workspace_limit is too
        small for one sample.
      TypeError: an operand is not an array; x has another dtype than those above; the
        bias is not floating; groups or offset_groups is not an int.
      TypeError, ValueError: as `jax.lax.conv_general_dilated`; where x and w do not
        fit each other, in their names.
    """
    plan.check_options(algorithm, workspace_limit)
    name = activation if isinstance(activation, str) else None
    function = activation if callable(activation) else None
    if activation is not None and name is None and function is None:
        raise TypeError(f"activation must be a name or a function, got {activation!r}")
    if name is not None and (chosen := activations.lookup(name)) is not None:
        function = chosen.fn
    x, offset, w = operand(x), operand(offset), operand(w)
    bias, mask = operand(bias), operand(mask)
    check_arrays(x=x, w=w, offset=offset)
    if len(x.shape) != 4:
        raise ValueError(
            f"x must have two spatial axes, [N, H, W, C], got shape {tuple(x.shape)}"
        )
    spatial_axes(x, w)
    if problem := plan.unsupported(x.dtype, x.dtype, 2):
        raise TypeError(f"deform_conv takes floating-point arrays, got {problem}")
    check_int("groups", groups)
    precision = _compat.canonicalize_precision(precision)
    if problem := precision_problem(precision):
        if algorithm not in ("auto", "xla"):
            raise ValueError(
                f"algorithm={algorithm!r} cannot run this convolution: {problem}. "
                "algorithm='xla' and algorithm='auto' can."
            )
        algorithm = "xla"
    order = channels_last(2, dimension_numbers)
    with misfits.named(x, w, order, groups):
        geometry, numbers, dtype = geometry_of(
            x,
            w,
            window_strides=per_axis("strides", strides, 2),
            padding=conv_padding(padding, 2),
            lhs_dilation=(1, 1),
            rhs_dilation=per_axis("dilation", dilation, 2),
            dimension_numbers=order,
            feature_group_count=groups,
            batch_group_count=1,
            preferred_element_type=None,
        )
    _check_offset_groups(offset_groups, geometry.C)
    params = DeformParams(
        ConvParams(
            geometry,
            numbers,
            precision,
            algorithm,
            None if workspace_limit is None else int(workspace_limit),
        ),
        int(offset_groups),
    )
    taps = params.offset_groups * geometry.R * geometry.S
    offset = _channels_last("offset", offset, 2 * taps, params, dtype)
    if mask is not None:
        mask = _channels_last("mask", mask, taps, params, dtype)
    bias = per_channel("bias", bias, geometry.K, dtype)
    here = targets.default_platform()
    asked = params.problem("fprop", ("y",), dtype, here)
    deform_plan.check_somewhere(asked, algorithm)
    y = forward(x, offset, w, mask, bias, params)
    return function(y) if function else y


def from_torch(
    x: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    w: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Moves the axes of arrays of torchvision's or mmcv's deformable convolutions.

    Both number the channels of offset and mask as `deform_conv` does. So only axes
    move, from NCHW to NHWC and from OIHW to HWIO.

    Args:
      x, offset, mask: [N, channels, H or P, W or Q], or None.
      w: [K, C / groups, R, S], or None.

    Returns:
      x, offset, w, mask for `deform_conv`; None where None was given.
    """

    def moved(a: Any, order: Sequence[int]) -> jax.Array | None:
        return None if a is None else jnp.transpose(jnp.asarray(a), order)

    x, offset, mask = (moved(a, (0, 2, 3, 1)) for a in (x, offset, mask))
    return x, offset, moved(w, (2, 3, 1, 0)), mask


def _check_offset_groups(offset_groups: int, channels: int) -> None:
    check_int("offset_groups", offset_groups)
    if offset_groups < 1 or channels % offset_groups:
        raise ValueError(
            f"offset_groups must be positive and divide the {channels} channels of "
            f"x, got {offset_groups}"
        )


def _channels_last(
    name: str, a: jax.Array, channels: int, params: DeformParams, dtype: DTypeLike
) -> jax.Array:
    """offset or mask, checked, as [N, P, Q, channels]."""
    g = params.geometry
    order = params.layout("y")
    want = [0] * 4
    for axis, size in zip(order, (g.N, g.P, g.Q, channels), strict=True):
        want[axis] = size
    check_arrays(**{name: a})
    if tuple(a.shape) != tuple(want):
        each = "2 numbers" if name == "offset" else "1 number"
        raise ValueError(
            f"{name} must have shape {tuple(want)}: samples and pixels of the "
            f"result, {each} for each of {g.R}x{g.S} taps in each of "
            f"{params.offset_groups} offset groups; got {tuple(a.shape)}"
        )
    allowed = {np.dtype(dtype).name, "float32"}
    if np.dtype(a.dtype).name not in allowed:
        raise ValueError(
            f"{name} must have dtype {' or '.join(sorted(allowed))}, got "
            f"{np.dtype(a.dtype).name}"
        )
    return jnp.transpose(a, order)
