# SPDX-License-Identifier: Apache-2.0
"""`flax.linen` layers whose convolution, bias and activation are one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_convbatch._api.types import Activation, Ints
from jax_convbatch._layers.channel_sums import normalized
from jax_convbatch.flax import _call, _deform
from jax_convbatch.flax._linen_causal import CausalConv1D
from jax_convbatch.flax._linen_conv import Conv, ConvTranspose, arrays
from jax_convbatch.flax._linen_norm_act import NormActConv

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


class ConvBlock(nn.Module):
    """activation(norm(conv(inputs)) + residual), the block of a residual network.

    The norm is `flax.linen.BatchNorm`. With `use_running_average`, it is a scale and a
    bias for each channel, and the block is one call of `jax_convbatch.conv_bias_act`.
    In training, the batch's statistics are computed between the convolution and what
    follows. Submodules are "conv" (`Conv` without bias) and "norm", with the variables
    of Flax's layers.

    Attributes:
      features, kernel_size, strides, padding: as in `Conv`.
      activation: as in `Conv`.
      use_running_average, momentum, epsilon, scale_init: as in
        `flax.linen.BatchNorm`.
      dtype: the dtype to compute in; by default the common dtype of inputs and
        parameters.
      conv: the layer for the convolution: `Conv`, or a `functools.partial` of it.
        With any other layer, nothing is fused.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    features: int
    kernel_size: Sequence[int]
    strides: Ints = 1
    padding: Any = "SAME"
    activation: Activation = "relu"
    use_running_average: bool = False
    momentum: float = 0.9
    epsilon: float = 1e-5
    scale_init: Callable[..., Any] = nn.initializers.ones_init()
    dtype: Any = None
    conv: Callable[..., nn.Module] = Conv

    @nn.compact
    def __call__(
        self, inputs: jax.Array, residual: jax.Array | None = None
    ) -> jax.Array:
        """[*batch, *output, K]; `residual` is like the result."""
        options: dict[str, Any] = getattr(self.conv, "keywords", {}) | dict(
            use_bias=False, dtype=self.dtype, padding=self.padding, name="conv"
        )
        layer = getattr(self.conv, "func", self.conv)
        norm = _Norm(
            use_running_average=self.use_running_average,
            momentum=self.momentum,
            epsilon=self.epsilon,
            scale_init=self.scale_init,
            dtype=self.dtype,
            ours=layer is Conv,
            name="norm",
        )
        size, strides = tuple(self.kernel_size), self.strides
        if layer is Conv and self.use_running_average:
            scale, bias = norm(None, self.features)
            options["activation"] = self.activation
            fused = _Scaled(self.features, size, strides, **options)
            return fused(inputs, residual, scale, bias)
        y = norm(layer(self.features, size, strides, **options)(inputs))
        return _call.activate(self, y, residual)


class DeformConv(nn.Module):
    """A deformable convolution that predicts its offsets: DCNv1, or v2 with a mask.

    The submodule "offset" is a `Conv` of the same geometry that starts at zero. Its
    channels are the offsets, then, if `modulated`, the logits of the mask.
    `jax_convbatch.deform_conv` reads at these offsets. So the layer starts as an
    ordinary convolution, with half of its value if `modulated` (sigmoid(0)).
    Parameters are "kernel" [R, S, C / groups, K], "bias" [K] and those of "offset".
    `jax_convbatch.flax.params_from_mmcv` converts the parameters of mmcv.

    Attributes:
      features: K.
      kernel_size, strides, padding, kernel_dilation: of both convolutions, as in
        `Conv`, for two spatial axes.
      feature_group_count, offset_groups: as `deform_conv`'s groups and
        offset_groups.
      modulated: whether there is a mask.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init: as in `Conv`.
      activation, algorithm, workspace_limit: as in `deform_conv`.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.deform_conv`.
    """

    features: int
    kernel_size: Ints
    strides: Ints = 1
    padding: Any = "SAME"
    kernel_dilation: Ints = 1
    feature_group_count: int = 1
    offset_groups: int = 1
    modulated: bool = True
    use_bias: bool = True
    activation: Activation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[*batch, P, Q, K] from [*batch, H, W, C]."""
        zeros = nn.initializers.zeros_init()
        predictor = Conv(
            _deform.predicted(self),
            kernel_init=zeros,
            bias_init=zeros,
            name="offset",
            **_deform.predictor_options(self),
        )
        shape = _deform.kernel_shape(self, inputs.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            shape = (self.features,)
            bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        inputs, kernel, bias = nn.dtypes.promote_dtype(
            inputs, kernel, bias, dtype=self.dtype
        )
        return _deform.deform(self, predictor, inputs, kernel, bias)


class _Scaled(Conv):
    """`Conv` that is given scale and bias."""

    @nn.compact
    def __call__(  # type: ignore[override]
        self,
        inputs: Any,
        residual: jax.Array | None,
        scale: jax.Array,
        bias: jax.Array,
    ) -> Any:
        channels = _call.group_features(self, inputs.shape[-1])
        inputs, kernel, _ = arrays(self, inputs, (channels, self.features))
        bias = bias.astype(kernel.dtype)
        return _call.conv(self, inputs, kernel, bias, None, residual, scale)


class _Norm(nn.BatchNorm):
    """`BatchNorm`, or the scale and bias that it amounts to when frozen.

    `ours`: its sums over the batch are `channel_sums`.
    """

    ours: bool = False

    @nn.compact
    def __call__(self, x: Any, features: int = 0) -> Any:  # type: ignore[override]
        training = not features
        if training:
            ours = self.ours and not self.use_running_average
            if not (ours and _call.has_sums(x, self.dtype, self.param_dtype)):
                return super().__call__(x)
            features = x.shape[-1]
        shape = (features,)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        if not training:
            scale = scale * jax.lax.rsqrt(var.value + self.epsilon)
            return scale, bias - mean.value * scale
        y, *found = normalized(x, scale, bias, self.epsilon)
        if not self.is_initializing():
            for old, new in zip((mean, var), found, strict=True):
                old.value = self.momentum * old.value + (1 - self.momentum) * new
        return y
