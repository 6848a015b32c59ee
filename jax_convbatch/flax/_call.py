# SPDX-License-Identifier: Apache-2.0
"""What Flax's layers do around a convolution, for linen and nnx alike.

`layer` is the module that is called: the attributes read here have the same
names in both. `kernel` and `bias` come promoted, `kernel` in Flax's shape.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._api.arguments import per_axis
from jax_convbatch._api.conv import transposed
from jax_convbatch._api.layer import conv_bias_act
from jax_convbatch._layers import activations


def group_features(layer: Any, features: int) -> int:
    """Of one of the layer's groups of the input's features.

    Raises:
      ValueError: the groups do not divide them.
    """
    channels, rest = divmod(features, layer.feature_group_count)
    if rest:
        raise ValueError(
            f"feature_group_count={layer.feature_group_count} must divide the "
            f"{features} features of the input"
        )
    return channels


def conv(
    layer: Any,
    inputs: Any,
    kernel: Any,
    bias: jax.Array | None,
    out_sharding: Any = None,
    residual: jax.Array | None = None,
    scale: jax.Array | None = None,
) -> jax.Array:
    """The value of a `Conv` layer: [*batch, *output, K]."""
    rank = kernel.ndim - 2
    x, batch = one_batch_axis(inputs, rank)
    y = _conv_bias_act(
        layer,
        x,
        kernel,
        bias,
        out_sharding,
        residual=None if residual is None else one_batch_axis(residual, rank)[0],
        scale=None if scale is None else scale.astype(_result_dtype(layer, x)),
        strides=_per_axis(layer, "strides", rank),
        padding=layer.padding,
        input_dilation=_per_axis(layer, "input_dilation", rank),
        dilation=_per_axis(layer, "kernel_dilation", rank),
        groups=layer.feature_group_count,
    )
    return y.reshape(*batch, *y.shape[1:])


def conv_transpose(layer: Any, inputs: Any, kernel: Any, bias: Any) -> jax.Array:
    """The value of a `ConvTranspose` layer: [*batch, *output, K]."""
    rank = kernel.ndim - 2
    x, batch = one_batch_axis(inputs, rank)
    strides = _per_axis(layer, "strides", rank)
    dilation = _per_axis(layer, "kernel_dilation", rank)
    x, kernel, pads = transposed(
        x,
        kernel,
        strides,
        layer.padding,
        dilation,
        _channels_last(rank),
        layer.transpose_kernel,
    )
    y = _conv_bias_act(
        layer,
        x,
        kernel,
        bias,
        padding=pads,
        input_dilation=strides,
        dilation=dilation,
    )
    return y.reshape(*batch, *y.shape[1:])


def masked(kernel: Any, mask: jax.Array | None) -> Any:
    """`kernel` where `mask` is 1; the shapes must agree."""
    if mask is None:
        return kernel
    if mask.shape != kernel.shape:
        raise ValueError(
            "Mask needs to have the same shape as weights. "
            f"Shapes are: {mask.shape}, {kernel.shape}"
        )
    return kernel * mask


def activate(layer: Any, y: jax.Array, residual: jax.Array | None = None) -> jax.Array:
    """The layer's activation of y + residual."""
    y = y if residual is None else y + residual
    if callable(layer.activation):
        return layer.activation(y)
    activation = activations.lookup(layer.activation)
    return activation.fn(y) if activation else y


def has_sums(x: jax.Array, dtype: DTypeLike | None, param_dtype: DTypeLike) -> bool:
    """Whether `channel_sums.normalized` gives what a BatchNorm of these dtypes does."""
    result = dtype or jnp.promote_types(x.dtype, param_dtype)
    floats = (jnp.bfloat16, jnp.float16, jnp.float32)
    return bool(
        x.size
        and x.dtype == result
        and x.dtype in floats
        and param_dtype == jnp.float32
    )


def _conv_bias_act(
    layer: Any,
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    out_sharding: Any = None,
    residual: jax.Array | None = None,
    **arguments: Any,
) -> jax.Array:
    wanted = getattr(layer, "preferred_element_type", None)
    dtype = _result_dtype(layer, x)
    rank = x.ndim - 2
    arguments |= dict(
        dimension_numbers=_channels_last(rank),
        precision=layer.precision,
        preferred_element_type=wanted,
        algorithm=layer.algorithm,
        workspace_limit=layer.workspace_limit,
        out_sharding=out_sharding,
    )
    added = [a for a in (bias, residual) if a is not None]
    if all(jnp.promote_types(a.dtype, dtype) == dtype for a in added):
        bias, residual = (
            None if a is None else a.astype(dtype) for a in (bias, residual)
        )
        arguments |= dict(activation=layer.activation, residual=residual)
        return conv_bias_act(x, w, bias, **arguments)
    # Flax's sum takes the wider dtype, and so the activation does.
    y = conv_bias_act(x, w, **arguments)
    return activate(layer, y if bias is None else y + bias, residual)


def _result_dtype(layer: Any, x: jax.Array) -> Any:
    wanted = getattr(layer, "preferred_element_type", None)
    return x.dtype if wanted is None else jax.dtypes.canonicalize_dtype(wanted)


def _channels_last(rank: int) -> jax.lax.ConvDimensionNumbers:
    """Flax's order of axes, for any number of spatial ones."""
    image = (0, rank + 1, *range(1, rank + 1))
    return jax.lax.ConvDimensionNumbers(image, (rank + 1, rank, *range(rank)), image)


def one_batch_axis(inputs: Any, rank: int) -> Any:
    """inputs as [N, *spatial, C], and the batch axes that N stands for."""
    if inputs.ndim < rank + 1:
        raise ValueError(
            f"inputs must have {rank} spatial axes and one of features, after any "
            f"number of batch axes, got shape {tuple(inputs.shape)}"
        )
    batch = inputs.shape[: inputs.ndim - rank - 1]
    shape = inputs.shape[len(batch) :]
    return jnp.reshape(inputs, (math.prod(batch), *shape)), batch


def _per_axis(layer: Any, name: str, rank: int) -> tuple[int, ...]:
    """The layer's strides or dilation for every axis; Flax lets None stand for 1."""
    value = getattr(layer, name)
    return per_axis(name, 1 if value is None else value, rank)
