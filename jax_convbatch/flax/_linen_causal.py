# SPDX-License-Identifier: Apache-2.0
"""The linen layer of a short causal convolution, with a cache for decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_convbatch._api.types import Activation, Ints
from jax_convbatch.flax import _causal


class CausalConv1D(nn.Module):
    """A depthwise causal convolution along a sequence, by `causal_conv1d`.

    Parameters are "kernel" [taps, 1, C] and "bias" [C]. Values are those of
    `flax.linen.Conv(C, (taps,), feature_group_count=C, padding="CAUSAL")`, and its
    checkpoints load.

    With `decode`, calls continue the sequence of the calls before: "cached_state"
    [*batch, (taps - 1) * dilation, C] of the collection "cache" holds the last inputs.
    `init` makes it, zeros, for the batch that it is given; so does an `apply` without
    "cache". A call takes one token or several, as a prompt. Results have the bits of
    one call without `decode`, for filters of 1 to 8 taps.

        layer = CausalConv1D(4, activation="silu", decode=True)
        variables = layer.init(jax.random.key(0), x[:, :1])
        y, cache = layer.apply(variables, x[:, :5], mutable=["cache"])
        y, cache = layer.apply({**variables, **cache}, x[:, 5:6], mutable=["cache"])

    Attributes:
      kernel_size: the number of taps. Kernels have 1 to 8; longer filters run as
        `jax_convbatch.conv` does.
      kernel_dilation: positions from one tap to the next.
      use_bias: whether there is a bias.
      activation: None, a name that `jax_convbatch.conv_bias_act` knows, or a
        function. "silu" is part of the kernel.
      dtype: the dtype to compute in, and of the cache; by default the common dtype of
        inputs and parameters.
      param_dtype: of all parameters.
      kernel_init, bias_init: initializers.
      decode: whether calls use the cache.

    Raises:
      ValueError: when called: segment ids of another shape, or with `decode`; a cache
        of another batch.
      TypeError: when called: a cache of another dtype.
      ValueError, TypeError: when called, as `jax_convbatch.causal_conv1d`.
    """

    kernel_size: Ints = 4
    kernel_dilation: Ints | None = 1
    use_bias: bool = True
    activation: Activation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    decode: bool = False

    @nn.compact
    def __call__(
        self, inputs: jax.Array, segment_ids: jax.Array | None = None
    ) -> jax.Array:
        """[*batch, L, C], from inputs of this shape.

        `segment_ids` [*batch, L], integers, keep sequences apart that are packed into
        one sample, as in `jax_convbatch.causal_conv1d`.
        """
        _causal.check_axes(inputs)
        shape = _causal.kernel_shape(self, inputs.shape[-1])
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            bias = self.param("bias", self.bias_init, shape[-1:], self.param_dtype)
        inputs, kernel, bias = nn.dtypes.promote_dtype(
            inputs, kernel, bias, dtype=self.dtype
        )
        if not self.decode:
            return _causal.whole(self, inputs, kernel, bias, segment_ids)
        _causal.check_decoding(segment_ids)
        state = self.variable(
            "cache",
            "cached_state",
            jnp.zeros,
            _causal.cache_shape(self, inputs.shape),
            inputs.dtype,
        )
        y, after = _causal.decoded(self, state.value, inputs, kernel, bias)
        if not self.is_initializing():
            state.value = after
        return y
