# SPDX-License-Identifier: Apache-2.0
"""The linen layers of one convolution, and their parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from jax_convbatch._api.types import Activation
from jax_convbatch.flax import _call


class Conv(nn.Conv):
    """`flax.linen.Conv` and an activation, in one call of `conv_bias_act`.

    Attributes, parameters ("kernel" [*kernel_size, C / groups, K] and "bias" [K]) and
    values are those of `flax.linen.Conv`, for inputs [*batch, *spatial, C]. If
    `conv_general_dilated` or `conv_general_dilated_cls` is given, that function runs.
    Bias and activation then follow it separately, and `algorithm` and
    `workspace_limit` have no effect.

    Attributes:
      activation: None, a name that `jax_convbatch.conv_bias_act` knows, or a
        function, which is applied outside the kernel.
      algorithm, workspace_limit: as in `jax_convbatch.conv_general_dilated`.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    activation: Activation = None
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
    def __call__(
        self, inputs: jax.Array, residual: jax.Array | None = None
    ) -> jax.Array:
        """[*batch, *output, K]; `residual`, like the result, is added before the
        activation."""
        theirs = ("conv_general_dilated", "conv_general_dilated_cls")
        if any(getattr(self, name, None) is not None for name in theirs):
            return _call.activate(self, super().__call__(inputs), residual)
        channels = _call.group_features(self, inputs.shape[-1])
        inputs, kernel, bias = arrays(self, inputs, (channels, self.features))
        return _call.conv(self, inputs, kernel, bias, None, residual)


class ConvTranspose(nn.ConvTranspose):
    """`flax.linen.ConvTranspose` and an activation, like `Conv` above.

    Attributes, parameters and values are those of `flax.linen.ConvTranspose`.

    Attributes:
      activation, algorithm, workspace_limit: as in `Conv`.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    activation: Activation = None
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        channels = (inputs.shape[-1], self.features)
        if self.transpose_kernel:
            channels = channels[::-1]
        return _call.conv_transpose(self, *arrays(self, inputs, channels))


def arrays(layer: Any, inputs: Any, channels: tuple[int, int]) -> Any:
    """inputs, kernel and bias, in the dtype to compute in."""
    size = layer.kernel_size
    taps = (size,) if isinstance(size, int) else tuple(size)
    kernel = layer.param(
        "kernel", layer.kernel_init, (*taps, *channels), layer.param_dtype
    )
    bias = None
    if layer.use_bias:
        bias = layer.param(
            "bias", layer.bias_init, (layer.features,), layer.param_dtype
        )
    kernel = _call.masked(kernel, layer.mask)
    return layer.promote_dtype(inputs, kernel, bias, dtype=layer.dtype)
