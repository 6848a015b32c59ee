# SPDX-License-Identifier: Apache-2.0
"""The nnx layers of one convolution, and their parameters."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from jax_convbatch._api.conv import conv_general_dilated
from jax_convbatch._api.types import Activation
from jax_convbatch._layers import activations
from jax_convbatch.flax import _call


class Conv(nnx.Conv):
    """`flax.nnx.Conv` and an activation, in one call of `conv_bias_act`.

    Arguments, parameters (`kernel` [*kernel_size, C / groups, K] and `bias` [K]) and
    values are those of `flax.nnx.Conv`, for inputs [*batch, *spatial, C]. If
    `conv_general_dilated=` is given, that function runs. Bias and activation then
    follow it separately, and `algorithm` and `workspace_limit` have no effect.

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
        *args: Any,
        activation: Activation = None,
        algorithm: str = "auto",
        workspace_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("conv_general_dilated", conv_general_dilated)
        super().__init__(*args, **kwargs)
        set_options(self, activation, algorithm, workspace_limit)

    def __call__(
        self,
        inputs: jax.Array,
        out_sharding: Any = None,
        residual: jax.Array | None = None,
    ) -> jax.Array:
        """[*batch, *output, K]; under an explicit mesh in `out_sharding`, if given.

        `residual`, like the result, is added before the activation.
        """
        if self.conv_general_dilated is not conv_general_dilated:
            y = super().__call__(inputs, out_sharding)
            return _call.activate(self, y, residual)
        inputs, kernel, bias = arrays(self, inputs)
        return _call.conv(self, inputs, kernel, bias, out_sharding, residual)


class ConvTranspose(nnx.ConvTranspose):
    """`flax.nnx.ConvTranspose` and an activation, like `Conv` above.

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
        *args: Any,
        activation: Activation = None,
        algorithm: str = "auto",
        workspace_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        set_options(self, activation, algorithm, workspace_limit)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[*batch, *output, K]."""
        return _call.conv_transpose(self, *arrays(self, inputs))


def set_options(
    layer: Any, activation: Any, algorithm: str, workspace_limit: int | None
) -> None:
    if not callable(activation):
        activations.lookup(activation)
    layer.activation = activation
    layer.algorithm = algorithm
    layer.workspace_limit = workspace_limit


def arrays(layer: Any, inputs: Any) -> Any:
    """inputs, kernel and bias, in the dtype to compute in."""
    kernel = _call.masked(layer.kernel[...], layer.mask)
    bias = None if layer.bias is None else layer.bias[...]
    return layer.promote_dtype((inputs, kernel, bias), dtype=layer.dtype)
