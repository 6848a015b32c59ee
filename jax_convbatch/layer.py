"""conv_bias_act: the layer a model calls, with a backward rule of our kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_convbatch import _compat, activations, primitives
from jax_convbatch.bias import bias_grad, broadcast_bias
from jax_convbatch.canonical import canonical_dtype, resolve
from jax_convbatch.conv import (
    channels_last,
    conv_general_dilated,
    conv_padding,
    per_axis,
)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The static part of a layer."""

    params: primitives.ConvParams
    out_dtype: np.dtype
    activation: str | None
    out_sharding: NamedSharding | None

    @property
    def channel_axis(self) -> int:
        return self.params.axis("y", "K")

    def pre_activation(self, x, w, bias):
        z = primitives.bind(
            "fprop",
            x,
            w,
            self.params,
            out_dtype=self.out_dtype,
            out_sharding=self.out_sharding,
        )
        return z if bias is None else _add_bias(z, bias, self.channel_axis)


def _add_bias(z, bias, channel_axis: int):
    sharding = _sharding(z)
    return z + broadcast_bias(bias, z.shape, channel_axis, out_sharding=sharding)


def _sharding(a):
    return _compat.typeof(a).sharding


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer(x, w, bias, layer: _Layer):
    return _forward(x, w, bias, layer)[0]


def _forward(x, w, bias, layer: _Layer):
    z = layer.pre_activation(x, w, bias)
    activation = activations.lookup(layer.activation)
    if activation is None:
        return z, None
    y = activation.fn(z)
    return y, y if activation.saves_output else z


def _layer_fwd(x, w, bias, layer: _Layer):
    y, saved = _forward(x, w, bias, layer)
    return y, (x, w, bias, saved)


def _layer_bwd(layer: _Layer, residuals, dy):
    x, w, bias, saved = residuals
    activation = activations.lookup(layer.activation)
    dz = dy if activation is None else activation.backward(saved, dy)
    gradient = partial(primitives.gradient, params=layer.params)
    dx = gradient("x", {"y": dz}, {"w": w}, dtype=x.dtype, out_sharding=_sharding(x))
    dw = gradient("w", {"y": dz}, {"x": x}, dtype=w.dtype, out_sharding=_sharding(w))
    if bias is None:
        return dx, dw, None
    db = bias_grad(dz, layer.channel_axis, out_sharding=_sharding(bias))
    return dx, dw, db


_layer.defvjp(_layer_fwd, _layer_bwd)


def conv_bias_act(
    x,
    w,
    bias=None,
    *,
    activation: str | None = None,
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | tuple[int, int]] = "SAME",
    input_dilation: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers=None,
    precision=None,
    preferred_element_type=None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    ad: str = "reverse",
) -> jax.Array:
    """activation(conv(x, w) + bias), the layer of a network.

    By default this is a `jax.custom_vjp` function: its backward rule runs this
    package's dgrad, wgrad and bias-gradient kernels and keeps of the forward pass
    only x, w and one array (the output where the activation's derivative follows
    from it: relu, relu6, leaky_relu, elu, sigmoid, tanh; else the
    pre-activation). JAX gives such functions no forward mode, so `jax.jvp` of it
    raises; grad, grad of grad and `jax.hessian` work. `ad="both"` builds the same
    values from the linear primitives instead: every mode and order works, with
    the same kernels, but what is saved is JAX's choice.

    Args:
      x: [N, *spatial, C], 0 to 3 spatial axes.
      w: [*spatial, C / groups, K], dtype of x.
      bias: [K] in the result's dtype, or None.
      activation: None, "identity", "relu", "relu6", "leaky_relu", "elu",
        "sigmoid", "tanh", "gelu" (tanh approximation), "gelu_exact" or "silu";
        each is the function of that name in `jax.nn`. The derivative at a kink
        is 0 (1 for leaky_relu, as in `jax.nn`).
      strides, padding, input_dilation, dilation, groups, dimension_numbers,
        precision, preferred_element_type, algorithm, workspace_limit: as in `conv`.
      out_sharding: as in `jax.lax.conv_general_dilated`.
      ad: "reverse" or "both", see above.

    Returns:
      [N, *output, K] in the dtype that `jax.lax.conv_general_dilated` gives.

    Raises:
      ValueError: unknown activation or `ad`, a bias that is not [K].
      TypeError: a bias of another dtype.
      TypeError, ValueError: as `conv_general_dilated`.
    """
    chosen = activations.lookup(activation)
    if ad not in ("reverse", "both"):
        raise ValueError(f"ad must be 'reverse' or 'both', got {ad!r}")
    bias = canonical_dtype(bias)
    rank = jnp.ndim(x) - 2
    numbers = channels_last(rank, dimension_numbers)
    arguments = dict(
        window_strides=per_axis("strides", strides, rank),
        padding=conv_padding(padding, rank),
        lhs_dilation=per_axis("input_dilation", input_dilation, rank),
        rhs_dilation=per_axis("dilation", dilation, rank),
        dimension_numbers=numbers,
        feature_group_count=groups,
        preferred_element_type=preferred_element_type,
    )
    call = resolve(
        x, w, precision, algorithm, workspace_limit, batch_group_count=1, **arguments
    )
    if isinstance(call, str):
        y = conv_general_dilated(
            x,
            w,
            **arguments,
            precision=precision,
            algorithm=algorithm,
            out_sharding=out_sharding,
        )
        axis = jax.lax.conv_dimension_numbers(x.shape, w.shape, numbers).out_spec[1]
        _check_bias(bias, y.shape[axis], y.dtype)
        if bias is not None:
            y = y + jax.lax.broadcast_in_dim(bias, y.shape, (axis,))
        return chosen.fn(y) if chosen else y
    sharding = _compat.canonicalize_sharding(out_sharding, "conv_bias_act")
    layer = _Layer(call.params, np.dtype(call.out_dtype), activation, sharding)
    _check_bias(bias, call.params.geometry.K, layer.out_dtype)
    # Outside the custom_vjp function, so that under shard_map the cotangent of
    # a replicated operand is summed by the transpose of this cast.
    arrays = [call.x, call.w] + ([] if bias is None else [bias])
    x, w, *rest = _compat.auto_insert_reshard(*arrays)
    bias = rest[0] if rest else None
    if ad == "reverse":
        return _layer(x, w, bias, layer)
    z = layer.pre_activation(x, w, bias)
    return chosen.fn(z) if chosen else z


def _check_bias(bias, channels: int, dtype) -> None:
    if bias is None:
        return
    if not (hasattr(bias, "shape") and hasattr(bias, "dtype")):
        raise TypeError(f"bias must be an array, got {type(bias).__name__}")
    if tuple(bias.shape) != (channels,):
        raise ValueError(
            f"bias must have shape ({channels},), one number for each output "
            f"channel, got {tuple(bias.shape)}"
        )
    if np.dtype(bias.dtype) != np.dtype(dtype):
        raise TypeError(
            f"bias must have the result's dtype {np.dtype(dtype).name}, "
            f"got {np.dtype(bias.dtype).name}"
        )
