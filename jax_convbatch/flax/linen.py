"""`flax.linen` layers whose convolution, bias and activation are one call."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn

from jax_convbatch.flax import _call


class Conv(nn.Conv):
    """`flax.linen.Conv`, then an activation, by `jax_convbatch.conv_bias_act`.

    Attributes, parameters ("kernel" [*kernel_size, C / groups, K] and "bias"
    [K]) and values are those of `flax.linen.Conv`, for [*batch, *spatial, C].
    A function given as `conv_general_dilated` or `conv_general_dilated_cls` is
    the one that runs; bias and activation are then separate from it, and the
    last two attributes below have no effect.

    Attributes:
      activation: None, a name that `jax_convbatch.conv_bias_act` knows, or a
        function, which is applied outside the kernel.
      algorithm, workspace_limit: as in `jax_convbatch.conv_general_dilated`.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    activation: str | Callable | None = None
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
    def __call__(self, inputs, residual=None):
        """[*batch, *output, K]; `residual`, like the result, is added before the
        activation."""
        theirs = ("conv_general_dilated", "conv_general_dilated_cls")
        if any(getattr(self, name, None) is not None for name in theirs):
            return _call.activate(self, super().__call__(inputs), residual)
        channels, rest = divmod(inputs.shape[-1], self.feature_group_count)
        if rest:
            raise ValueError(
                f"feature_group_count={self.feature_group_count} must divide the "
                f"{inputs.shape[-1]} features of the input"
            )
        inputs, kernel, bias = _arrays(self, inputs, (channels, self.features))
        return _call.conv(self, inputs, kernel, bias, None, residual)


class ConvTranspose(nn.ConvTranspose):
    """`flax.linen.ConvTranspose`, then an activation, as `Conv` above.

    Attributes, parameters and values are those of `flax.linen.ConvTranspose`.

    Attributes:
      activation, algorithm, workspace_limit: as in `Conv`.

    Raises:
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    activation: str | Callable | None = None
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
    def __call__(self, inputs):
        channels = (inputs.shape[-1], self.features)
        if self.transpose_kernel:
            channels = channels[::-1]
        return _call.conv_transpose(self, *_arrays(self, inputs, channels))


def _arrays(layer, inputs, channels: tuple[int, int]):
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
