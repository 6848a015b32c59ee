# SPDX-License-Identifier: Apache-2.0
"""The nnx layer of a norm, an activation and a convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_convbatch._api.types import Activation, Ints
from jax_convbatch.flax import _norm_act
from jax_convbatch.flax._nnx_conv import Conv, arrays
from jax_convbatch.norms import Statistics

_LECUN_NORMAL = nnx.initializers.lecun_normal()
_ONES = nnx.initializers.ones_init()
_ZEROS = nnx.initializers.zeros_init()


class NormActConv(nnx.Module):
    """conv(activation(norm(inputs))) + bias + residual, by `norm_act_conv`.

    It is the layer of this name in `jax_convbatch.flax.linen`. Its attributes are
    `norm`, a `flax.nnx.BatchNorm`, GroupNorm or InstanceNorm, or None, and `conv`, a
    `Conv`. After `eval()`, or with `use_running_average`, a batch norm takes its
    running statistics.

        layer = NormActConv(
            64, 64, (3, 3), norm="group", activation="silu", rngs=nnx.Rngs(0)
        )
        y = layer(x)

    Args:
      in_features, out_features: C and K.
      rngs: `nnx.Rngs` for the parameters.
      Others: as the attributes of the linen layer.

    Raises:
      ValueError: an unknown norm or activation; groups that do not divide the features.
      ValueError, TypeError: when called, as the linen layer.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Ints,
        strides: Ints | None = 1,
        *,
        padding: Any = "SAME",
        kernel_dilation: Ints | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: jax.Array | None = None,
        norm: str | None = "batch",
        num_groups: int = 32,
        use_running_average: bool | None = False,
        momentum: float = 0.99,
        epsilon: float | None = None,
        scale_init: Callable[..., Any] = _ONES,
        axis_name: Any = None,
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
        found = _norm_act.Norm.of(
            norm, in_features, num_groups, epsilon, momentum, axis_name
        )
        options: dict[str, Any] = dict(
            epsilon=found.epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            scale_init=scale_init,
            axis_name=axis_name,
            rngs=rngs,
        )
        self.norm: Any = nnx.data(None)
        if norm == "batch":
            self.norm = nnx.BatchNorm(
                in_features,
                use_running_average=use_running_average,
                momentum=momentum,
                **options,
            )
        elif norm == "group":
            self.norm = nnx.GroupNorm(in_features, num_groups, **options)
        elif norm == "instance":
            self.norm = nnx.InstanceNorm(in_features, **options)
        self.conv = Conv(
            in_features,
            out_features,
            kernel_size,
            strides,
            padding=padding,
            kernel_dilation=kernel_dilation,
            feature_group_count=feature_group_count,
            use_bias=use_bias,
            mask=mask,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=kernel_init,
            bias_init=bias_init,
            activation=activation,
            algorithm=algorithm,
            workspace_limit=workspace_limit,
            rngs=rngs,
        )

    def __call__(
        self,
        inputs: jax.Array,
        residual: jax.Array | None = None,
        *,
        offset: jax.Array | None = None,
        modulation: tuple[jax.Array, jax.Array] | None = None,
        statistics: Statistics | None = None,
        return_statistics: str | int | None = None,
        use_running_average: bool | None = None,
    ) -> Any:
        """[*batch, *output, K], or that and its statistics; arguments as in linen."""
        norm = _norm_of(self.norm, inputs.shape[-1])
        x, batch = _norm_act.pixels(self.conv, norm.kind, inputs)
        offset = _norm_act.by_sample("offset", offset, x, batch)
        factors: _norm_act.Factors = (None, None)
        if norm.kind is not None:
            gamma, beta = self.norm.scale[...], self.norm.bias[...]
            if norm.kind == "batch" and self._frozen(use_running_average):
                mean, var = self.norm.mean[...], self.norm.var[...]
                factors = norm.of_moments(mean, var, gamma, beta)
            else:
                found = norm.sums(x, statistics, offset)
                factors = norm.of_sums(found, x, gamma, beta)
                if norm.kind == "batch":
                    self._update(norm, x, found)
        factors = _norm_act.composed(factors, offset, modulation, x, batch)
        x, kernel, bias = arrays(self.conv, x)
        return _norm_act.value(
            self.conv, x, batch, kernel, bias, factors, residual, return_statistics
        )

    def _frozen(self, given: bool | None) -> bool:
        given = self.norm.use_running_average if given is None else given
        if given is None:
            raise ValueError(
                "use_running_average must be given to a layer with a batch norm, when "
                "it is made or called"
            )
        return given

    def _update(self, norm: _norm_act.Norm, x: jax.Array, found: Statistics) -> None:
        old = self.norm.mean, self.norm.var
        new = norm.running(x, found, *(a[...] for a in old))
        for a, b in zip(old, new, strict=True):
            a[...] = jax.lax.stop_gradient(b)


def _norm_of(layer: Any, channels: int) -> _norm_act.Norm:
    """Of Flax's layer, whose attributes may have been set since it was made."""
    if layer is None:
        return _norm_act.Norm.of(None, channels, 1, None, 0.0, None)
    kinds: dict[type, str] = {nnx.BatchNorm: "batch", nnx.GroupNorm: "group"}
    return _norm_act.Norm.of(
        kinds.get(type(layer), "instance"),
        channels,
        getattr(layer, "num_groups", 1),
        layer.epsilon,
        getattr(layer, "momentum", 0.0),
        layer.axis_name,
    )
