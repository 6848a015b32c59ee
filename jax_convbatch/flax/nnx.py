"""`flax.nnx` layers whose convolution, bias and activation are one call."""

from __future__ import annotations

from collections.abc import Callable

from flax import nnx

from jax_convbatch import activations
from jax_convbatch.conv import conv_general_dilated
from jax_convbatch.flax import _call


class Conv(nnx.Conv):
    """`flax.nnx.Conv`, then an activation, by `jax_convbatch.conv_bias_act`.

    Arguments, parameters (`kernel` [*kernel_size, C / groups, K] and `bias` [K])
    and values are those of `flax.nnx.Conv`, for [*batch, *spatial, C]. Another
    function given as `conv_general_dilated=` is the one that runs; bias and
    activation are then separate from it, and `algorithm` and `workspace_limit` have
    no effect.

    Args:
      *args, **kwargs: the arguments of `flax.nnx.Conv`.
      activation: None, a name that `jax_convbatch.conv_bias_act` knows, or a
        function, which is applied outside the kernel.
      algorithm, workspace_limit: as in `jax_convbatch.conv_general_dilated`.

    Raises:
      ValueError: unknown activation.
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    def __init__(
        self,
        *args,
        activation: str | Callable | None = None,
        algorithm: str = "auto",
        workspace_limit: int | None = None,
        **kwargs,
    ):
        kwargs.setdefault("conv_general_dilated", conv_general_dilated)
        super().__init__(*args, **kwargs)
        _set_options(self, activation, algorithm, workspace_limit)

    def __call__(self, inputs, out_sharding=None, residual=None):
        """[*batch, *output, K]; under an explicit mesh in `out_sharding`, if given.

        `residual`, like the result, is added before the activation.
        """
        if self.conv_general_dilated is not conv_general_dilated:
            y = super().__call__(inputs, out_sharding)
            return _call.activate(self, y, residual)
        inputs, kernel, bias = _arrays(self, inputs)
        return _call.conv(self, inputs, kernel, bias, out_sharding, residual)


class ConvTranspose(nnx.ConvTranspose):
    """`flax.nnx.ConvTranspose`, then an activation, as `Conv` above.

    Arguments, parameters and values are those of `flax.nnx.ConvTranspose`.

    Args:
      *args, **kwargs: the arguments of `flax.nnx.ConvTranspose`.
      activation, algorithm, workspace_limit: as in `Conv`.

    Raises:
      ValueError: unknown activation.
      ValueError, TypeError: when called, as `jax_convbatch.conv_bias_act`.
    """

    def __init__(
        self,
        *args,
        activation: str | Callable | None = None,
        algorithm: str = "auto",
        workspace_limit: int | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        _set_options(self, activation, algorithm, workspace_limit)

    def __call__(self, inputs):
        """[*batch, *output, K]."""
        return _call.conv_transpose(self, *_arrays(self, inputs))


def _set_options(layer, activation, algorithm, workspace_limit) -> None:
    if not callable(activation):
        activations.lookup(activation)
    layer.activation = activation
    layer.algorithm = algorithm
    layer.workspace_limit = workspace_limit


def _arrays(layer, inputs):
    """inputs, kernel and bias, in the dtype to compute in."""
    kernel = _call.masked(layer.kernel[...], layer.mask)
    bias = None if layer.bias is None else layer.bias[...]
    return layer.promote_dtype((inputs, kernel, bias), dtype=layer.dtype)
