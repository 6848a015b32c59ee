# SPDX-License-Identifier: Apache-2.0
"""conv_general_dilated, conv and conv_transpose: what users call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from jax_convbatch import _compat
from jax_convbatch._api import edges, misfits
from jax_convbatch._api.arguments import (
    channels_last,
    conv_padding,
    per_axis,
    spatial_axes,
)
from jax_convbatch._api.canonical import operand, resolve, traced
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import (
    Activation,
    ArrayLike,
    ConvPadding,
    DimensionNumbers,
    DTypeLike,
    Ints,
    Padding,
    PrecisionLike,
    Sharding,
)
from jax_convbatch._explain import log
from jax_convbatch._primitives import primitives


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: DimensionNumbers = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Sharding = None,
    *,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> jax.Array:
    """Drop-in for `jax.lax.conv_general_dilated`, run by this package's engines.

    Arguments, result, dtypes and errors are those of `jax.lax.conv_general_dilated`.
    Only the keywords below are new. Calls that no engine covers run in `jax.lax`:
    integers, complex numbers, symbolic sizes, more than three spatial dimensions, and
    platforms without native code. `jax_convbatch.explain` shows which engine runs.

    Args:
      algorithm: "auto", or an engine by name: "implicit_gemm" (this package's
        kernels, without an im2col matrix in memory), "cudnn" (cuDNN's kernels on CUDA,
        chosen without timing), "im2col_gemm" (an im2col matrix and one strided-batched
        GEMM), "per_sample" (one im2col matrix and one GEMM for each sample, for
        comparison), "xla" (`jax.lax`). A named engine is never replaced by another.
        Gradients use the same engine.
      workspace_limit: bytes that each of fprop, dgrad and wgrad may take in addition
        to its operands and result. If the whole batch needs more, it is processed in
        slices, with the same bits. The default is 16 MiB on the CPU and 256 MiB on
        CUDA, or the memory of one sample if that is more. Memory that does not depend
        on the slice, such as wgrad's partial sums on CUDA, has no default limit; if it
        exceeds a limit that is given, "auto" takes another engine.

    Returns:
      An array of the shape and dtype that `jax.lax` gives.

    Raises:
      ValueError: `algorithm` is unknown or cannot do this call, or
        `workspace_limit` is too small for one sample (the message has the
        smallest that works).
      TypeError, ValueError: as `jax.lax.conv_general_dilated`, with its messages.
    """
    stock = functools.partial(
        # Not by its public name, which users may have given to this function.
        _compat.lax_conv,
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        feature_group_count,
        batch_group_count,
        precision,
        preferred_element_type,
        out_sharding,
    )
    call = resolve(
        lhs,
        rhs,
        precision,
        algorithm,
        workspace_limit,
        window_strides=window_strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        preferred_element_type=preferred_element_type,
    )
    if isinstance(call, str):
        if algorithm in ("auto", "xla"):
            y = stock()
            log.in_jax_lax(lhs, rhs, call)
            return y
        stock()  # what jax.lax refuses is refused in its words
        raise ValueError(
            f"algorithm={algorithm!r} cannot run this convolution: {call}. "
            "algorithm='xla' and algorithm='auto' can."
        )
    return primitives.bind(
        "fprop",
        call.x,
        call.w,
        call.params,
        out_dtype=call.out_dtype,
        out_sharding=out_sharding,
    )


@overload
def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[False] = False,
) -> jax.Array: ...
@overload
def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...
@with_hints(
    elsewhere=dict.fromkeys(("activation", "residual", "scale"), "conv_bias_act")
)
def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Convolution of channels-last arrays: `x` with the filter `w`, plus `bias`.

    Args:
      x: [N, *spatial, C], floating, with 0 to 3 spatial axes.
      w: [*spatial, C / groups, K], dtype of x.
      bias: [K] in a floating dtype, or None. It is cast to the dtype of the result.
      strides, input_dilation, dilation: an int, or one for each spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for each spatial axis an
        int or a (low, high) pair. Pairs may be negative. Also, as in Flax's `Conv`:
        "CAUSAL" (one spatial axis: an output sees no later input), "CIRCULAR" and
        "REFLECT" (x continues periodically or mirrored, where SAME has zeros at
        stride 1). "EDGE" repeats the border. "WRAP" is "CIRCULAR". Each axis may have
        its own name, as in ("CAUSAL", "SAME", "SAME"). A pair of a name and an amount,
        such as ("EDGE", (2, 0)) or ("REFLECT", 1), pads an axis by that much.
      groups: number of channel groups. C groups are a depthwise convolution.
      dimension_numbers: as in `jax.lax.conv_general_dilated`, for arrays that are not
        channels-last.
      precision, preferred_element_type: as in `jax.lax.conv_general_dilated`.
      algorithm, workspace_limit: as in `conv_general_dilated`.
      initial_state: for a sequence in parts along the first spatial axis, on which
        padding is "CAUSAL": the (taps - 1) * dilation inputs before x, with x's dtype
        and other sizes. None stands for zeros.
      return_final_state: whether to return the initial state of the next part, too.
        The length of x must then be a multiple of the stride along that axis.

    Returns:
      [N, *output, K]. With `return_final_state`, (result, final state).

    Raises:
      ValueError, TypeError: shapes, dtypes or options that do not fit; the
        message names them.
    """
    from jax_convbatch._api.layer import conv_bias_act

    options: dict[str, Any] = dict(
        strides=strides,
        padding=padding,
        input_dilation=input_dilation,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        initial_state=initial_state,
        return_final_state=return_final_state,
    )
    return conv_bias_act(x, w, bias, **options)


@with_hints(
    instead={
        "output_padding": "shorten the padding at the end of each axis: "
        "padding=((1, 0), (1, 0)) is padding=1, output_padding=1"
    }
)
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    strides: Ints = 1,
    padding: Padding = "SAME",
    dilation: Ints = 1,
    transpose_kernel: bool = False,
    use_consistent_padding: bool = False,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> jax.Array:
    """Transposed (fractionally strided) convolution of channels-last arrays.

    The semantics are those of `jax.lax.conv_transpose`: `x` is dilated by
    `strides` and convolved with `w` at stride 1.

    Args:
      x: [N, *spatial, C].
      w: [*spatial, C, K]. With `transpose_kernel`, [*spatial, K, C]: the filter is
        flipped in its spatial axes first, which makes this the gradient of a
        convolution.
      bias: [K] in a floating dtype, or None. It is cast to the dtype of the result.
      activation, residual, scale: as in `conv_bias_act`.
      strides, dilation: an int, or one for each spatial axis.
      padding: "SAME" or "VALID" of the convolution that this transposes; "CIRCULAR",
        as in Flax's `ConvTranspose`, or "WRAP", which is the same; or padding of the
        dilated input, as an int, or an int or a (low, high) pair for each spatial axis.
      use_consistent_padding: whether numbers, too, are padding of the convolution
        that this transposes, as in PyTorch.
      dimension_numbers, precision, preferred_element_type, algorithm,
        workspace_limit: as in `conv`.

    Returns:
      [N, *output, K].

    Raises:
      ValueError, TypeError: as `conv`.
    """
    from jax_convbatch._api.layer import conv_bias_act

    x, w = operand(x), operand(w)
    rank = spatial_axes(x, w)
    numbers = channels_last(rank, dimension_numbers)
    strides = per_axis("strides", strides, rank)
    dilation = per_axis("dilation", dilation, rank)
    x, w, pads = transposed(
        x, w, strides, padding, dilation, numbers, transpose_kernel,
        use_consistent_padding, preferred_element_type,
    )  # fmt: skip
    return conv_bias_act(
        x,
        w,
        bias,
        activation=activation,
        residual=residual,
        scale=scale,
        padding=pads,
        input_dilation=strides,
        dilation=dilation,
        dimension_numbers=numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
    )


def transposed(
    x: jax.Array,
    w: jax.Array,
    strides: tuple[int, ...],
    padding: Any,
    dilation: tuple[int, ...],
    dimension_numbers: Any,
    transpose_kernel: bool,
    use_consistent_padding: bool = False,
    preferred_element_type: DTypeLike | None = None,
) -> tuple[Any, ...]:
    """x, filter and padding with which a convolution of dilated x is a transposed one.

    What `jax.lax.conv_transpose` makes of its arguments, and what it refuses.

    Raises:
      ValueError, TypeError: as `conv_transpose`.
    """
    names = ("SAME", "VALID", *edges.OF_TRANSPOSED)
    padding = conv_padding(padding, len(strides), names)
    is_circular = padding in edges.OF_TRANSPOSED
    with misfits.named(x, w, dimension_numbers, transpose_kernel=transpose_kernel):
        params, _ = traced(
            _compat.lax_convs["conv_transpose"],
            x,
            w,
            dict(
                strides=strides,
                padding="VALID" if is_circular else padding,
                rhs_dilation=dilation,
                dimension_numbers=dimension_numbers,
                transpose_kernel=transpose_kernel,
                preferred_element_type=preferred_element_type,
                use_consistent_padding=use_consistent_padding,
            ),
        )
    pads = params["padding"]
    numbers = jax.lax.conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    if is_circular:
        taps = edges.windows(w, numbers.rhs_spec[2:], dilation)
        axes = numbers.lhs_spec[2:]
        x, pads = edges.of_transposed(x, axes, taps, strides, transpose_kernel)
    if transpose_kernel:
        spec = numbers.rhs_spec
        w = jnp.swapaxes(jnp.flip(w, spec[2:]), spec[0], spec[1])
    return x, w, pads
