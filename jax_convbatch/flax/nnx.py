# SPDX-License-Identifier: Apache-2.0
"""`flax.nnx` layers whose convolution, bias and activation are one call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_convbatch._api.conv import conv_general_dilated
from jax_convbatch._api.types import Activation, Ints
from jax_convbatch._layers import activations
from jax_convbatch._layers.channel_sums import normalized
from jax_convbatch.flax import _call, _deform
from jax_convbatch.flax._nnx_causal import CausalConv1D
from jax_convbatch.flax._nnx_conv import Conv, ConvTranspose, arrays, set_options
from jax_convbatch.flax._nnx_norm_act import NormActConv

__all__ = [
    "CausalConv1D",
    "Conv",
    "ConvBlock",
    "ConvTranspose",
    "DeformConv",
    "NormActConv",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_LECUN_NORMAL = nnx.initializers.lecun_normal()
_ONES = nnx.initializers.ones_init()
_ZEROS = nnx.initializers.zeros_init()


class ConvBlock(nnx.Module):
    """activation(norm(conv(inputs)) + residual), the block of a residual network.

    It is the layer of this name in `jax_convbatch.flax.linen`. Its attributes are
    `conv`, a `Conv` without bias, and `norm`, a `flax.nnx.BatchNorm`. After `eval()`,
    or with `use_running_average`, the norm is a scale and a bias for each channel, and
    the block is one call of `jax_convbatch.conv_bias_act`.

    Args:
      in_features, out_features: C and K.
      kernel_size, strides, padding, activation: as in `Conv`.
      use_running_average, momentum, epsilon, scale_init: as in `flax.nnx.BatchNorm`.
      dtype: the dtype to compute in; by default the common dtype of inputs and
        parameters.
      conv: the layer for the convolution: `Conv`, or a `functools.partial` of it.
        With any other layer, nothing is fused.
      rngs: `nnx.Rngs` for the parameters.

    Raises:
      ValueError: unknown activation.
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Ints,
        strides: Ints = 1,
        *,
        padding: Any = "SAME",
        activation: Activation = "relu",
        use_running_average: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        scale_init: Callable[..., Any] = _ONES,
        dtype: Any = None,
        conv: Callable[..., nnx.Module] = Conv,
        rngs: nnx.Rngs,
    ) -> None:
        if not callable(activation):
            activations.lookup(activation)
        self.activation = activation
        self.conv = conv(
            in_features,
            out_features,
            kernel_size,
            strides,
            padding=padding,
            use_bias=False,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(
            out_features,
            use_running_average=use_running_average,
            momentum=momentum,
            epsilon=epsilon,
            scale_init=scale_init,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(
        self, inputs: jax.Array, residual: jax.Array | None = None
    ) -> jax.Array:
        """[*batch, *output, K]; `residual` is like the result."""
        layer, norm = self.conv, self.norm
        fused = (
            type(layer) is Conv and layer.conv_general_dilated is conv_general_dilated
        )
        if not fused:
            return _call.activate(self, norm(layer(inputs)), residual)
        if not norm.use_running_average:
            return _call.activate(self, _normalized(norm, layer(inputs)), residual)
        assert norm.scale is not None and norm.bias is not None
        scale = norm.scale[...] * jax.lax.rsqrt(norm.var[...] + norm.epsilon)
        bias = norm.bias[...] - norm.mean[...] * scale
        inputs, kernel, _ = arrays(layer, inputs)
        activated = SimpleNamespace(**{**vars(layer), "activation": self.activation})
        bias = bias.astype(kernel.dtype)
        return _call.conv(activated, inputs, kernel, bias, None, residual, scale)


def _normalized(norm: nnx.BatchNorm, x: jax.Array) -> Any:
    """norm(x) in training, its sums over the batch by `channel_sums`."""
    plain = type(norm) is nnx.BatchNorm and norm.axis == -1 and norm.use_fast_variance
    plain &= norm.axis_name is None and norm.use_scale and norm.use_bias
    if not plain or not _call.has_sums(x, norm.dtype, norm.param_dtype):
        return norm(x)
    assert norm.scale is not None and norm.bias is not None
    parameters = norm.scale[...], norm.bias[...]
    y, mean, var = normalized(x, *parameters, norm.epsilon)
    for old, new in ((norm.mean, mean), (norm.var, var)):
        mixed = norm.momentum * old[...] + (1 - norm.momentum) * new
        old[...] = jax.lax.stop_gradient(mixed)
    return y


class DeformConv(nnx.Module):
    """A deformable convolution that predicts its offsets: DCNv1, or v2 with a mask.

    It is the layer of this name in `jax_convbatch.flax.linen`. Its attributes are
    `kernel`, `bias` and `offset`, a `Conv`.

    Args:
      in_features, out_features: C and K.
      rngs: `nnx.Rngs` for the parameters.
      Others: as the attributes of the linen layer.

    Raises:
      ValueError: groups that do not divide C, an unknown activation.
      ValueError, TypeError: when called, as `jax_convbatch.deform_conv`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Ints,
        strides: Ints = 1,
        *,
        padding: Any = "SAME",
        kernel_dilation: Ints = 1,
        feature_group_count: int = 1,
        offset_groups: int = 1,
        modulated: bool = True,
        use_bias: bool = True,
        activation: Activation = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Callable[..., Any] = _LECUN_NORMAL,
        bias_init: Callable[..., Any] = _ZEROS,
        algorithm: str = "auto",
        workspace_limit: int | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.kernel_dilation = kernel_dilation
        self.feature_group_count = feature_group_count
        self.offset_groups = offset_groups
        self.modulated = modulated
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        set_options(self, activation, algorithm, workspace_limit)
        shape = _deform.kernel_shape(self, in_features, out_features)
        self.kernel = nnx.Param(kernel_init(rngs.params(), shape, param_dtype))
        self.bias = nnx.data(None)
        if use_bias:
            bias = bias_init(rngs.params(), (out_features,), param_dtype)
            self.bias = nnx.Param(bias)
        self.offset = Conv(
            in_features,
            _deform.predicted(self),
            kernel_init=_ZEROS,
            bias_init=_ZEROS,
            rngs=rngs,
            **_deform.predictor_options(self),
        )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[*batch, P, Q, K] from [*batch, H, W, C]."""
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = dtypes.promote_dtype(
            (inputs, self.kernel[...], bias), dtype=self.dtype
        )
        return _deform.deform(self, self.offset, inputs, kernel, bias)
