# SPDX-License-Identifier: Apache-2.0
"""The nnx layer of a short causal convolution, with a cache for decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax.typing import DTypeLike

from jax_convbatch._api.types import Activation, Ints
from jax_convbatch._layers import activations
from jax_convbatch.flax import _causal

_LECUN_NORMAL = nnx.initializers.lecun_normal()
_ZEROS = nnx.initializers.zeros_init()


class CausalConv1D(nnx.Module):
    """A depthwise causal convolution along a sequence, by `causal_conv1d`.

    It is the layer of this name in `jax_convbatch.flax.linen`. Its attributes are
    `kernel` [taps, 1, C], `bias` [C] or None, and `cached_state`, None or the
    `nnx.Cache` [*batch, (taps - 1) * dilation, C] that `init_cache` makes.

    With `decode`, calls continue the sequence of the calls before. A call takes one
    token or several, as a prompt. Results have the bits of one call without `decode`,
    for filters of 1 to 8 taps.

        layer = CausalConv1D(64, 4, activation="silu", rngs=nnx.Rngs(0))
        layer.init_cache(x.shape)
        y = layer(x[:, :5], decode=True)
        y = layer(x[:, 5:6], decode=True)

    Args:
      in_features: C.
      decode: whether calls use the cache. `nnx.view` and `set_attributes` set it, and
        the argument of a call has precedence.
      rngs: `nnx.Rngs` for the parameters.
      Others: as the attributes of the linen layer.

    Raises:
      ValueError: unknown activation.
      ValueError, TypeError: when called, as the linen layer; inputs with another number
        of features; `decode` without a cache.
    """

    def __init__(
        self,
        in_features: int,
        kernel_size: Ints = 4,
        *,
        kernel_dilation: Ints | None = 1,
        use_bias: bool = True,
        activation: Activation = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Callable[..., Any] = _LECUN_NORMAL,
        bias_init: Callable[..., Any] = _ZEROS,
        decode: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        if not callable(activation):
            activations.lookup(activation)
        self.in_features = in_features
        self.kernel_size = kernel_size
        self.kernel_dilation = kernel_dilation
        self.activation = activation
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.decode = decode
        shape = _causal.kernel_shape(self, in_features)
        self.kernel = nnx.Param(kernel_init(rngs.params(), shape, param_dtype))
        self.bias: Any = nnx.data(None)
        if use_bias:
            bias = bias_init(rngs.params(), (in_features,), param_dtype)
            self.bias = nnx.Param(bias)
        self.cached_state: Any = nnx.data(None)

    def __call__(
        self,
        inputs: jax.Array,
        segment_ids: jax.Array | None = None,
        *,
        decode: bool | None = None,
    ) -> jax.Array:
        """[*batch, L, C], from inputs of this shape; arguments as in linen."""
        _causal.check_axes(inputs)
        self._check_features(inputs.shape)
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = dtypes.promote_dtype(
            (inputs, self.kernel[...], bias), dtype=self.dtype
        )
        if not (self.decode if decode is None else decode):
            return _causal.whole(self, inputs, kernel, bias, segment_ids)
        _causal.check_decoding(segment_ids)
        if self.cached_state is None:
            raise ValueError("decode=True needs a cache: call init_cache first")
        state = self.cached_state[...]
        y, after = _causal.decoded(self, state, inputs, kernel, bias)
        self.cached_state[...] = after
        return y

    def init_cache(
        self, input_shape: Sequence[int], dtype: DTypeLike | None = None
    ) -> None:
        """Make the cache zeros, as at the start of a sequence.

        Args:
          input_shape: [*batch, L, C] of inputs; L may be any.
          dtype: the one that the layer computes in. By default the layer's `dtype`, or
            `param_dtype`, which it is for inputs that are not wider.

        Raises:
          ValueError: too few axes, or another number of features.
        """
        inputs = jax.ShapeDtypeStruct(tuple(input_shape), self.param_dtype)
        _causal.check_axes(inputs)
        self._check_features(inputs.shape)
        shape = _causal.cache_shape(self, inputs.shape)
        zeros = jnp.zeros(shape, dtype or self.dtype or self.param_dtype)
        self.cached_state = nnx.Cache(zeros)

    def set_view(
        self, decode: bool | None = None, batch_size: Ints | None = None
    ) -> None:
        """Used by `nnx.view`.

        Args:
          decode: whether calls use the cache.
          batch_size: makes a cache where there is none.
        """
        if decode is not None:
            self.decode = decode
        if self.decode and self.cached_state is None and batch_size is not None:
            batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
            self.init_cache((*batch, 1, self.in_features))

    def _check_features(self, shape: tuple[int, ...]) -> None:
        if shape[-1] != self.in_features:
            raise ValueError(
                f"inputs must have the layer's {self.in_features} features, got shape "
                f"{shape}"
            )
