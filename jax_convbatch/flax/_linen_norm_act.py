# SPDX-License-Identifier: Apache-2.0
"""The linen layer of a norm, an activation and a convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_convbatch._api.types import Activation, Ints
from jax_convbatch.flax import _call, _norm_act
from jax_convbatch.flax._linen_conv import Conv, arrays
from jax_convbatch.norms import Statistics


class NormActConv(nn.Module):
    """conv(activation(norm(inputs))) + bias + residual, by `norm_act_conv`.

    Submodules are "norm", with the variables of Flax's BatchNorm, GroupNorm or
    InstanceNorm, and "conv", with those of its Conv. So checkpoints of a module that
    has Flax's layers under these names load, and the values agree. Padding adds zeros
    to the activated array.

        layer = NormActConv(64, (3, 3), norm="group", num_groups=32, activation="silu")
        variables = layer.init(jax.random.key(0), x)
        y = layer.apply(variables, x)

    Norm and activation are formed in f32 and rounded once, to the dtype to compute in.
    The backward pass keeps the inputs, not what they become.

    Attributes:
      features, kernel_size, strides, padding, kernel_dilation, feature_group_count,
        use_bias, mask, precision, kernel_init, bias_init: of the convolution, as in
        `Conv`, for 1 to 3 spatial axes.
      norm: "batch", "group", "instance" or None.
      num_groups: of a group norm.
      use_running_average: of a batch norm, here or when called: whether it takes the
        running statistics. Otherwise it takes those of the batch and updates them.
      momentum: of the running statistics.
      epsilon: added to the variance; None for Flax's default, 1e-5 for a batch norm
        and 1e-6 for the others.
      scale_init: initializer of the norm's scale.
      axis_name: of the devices that share statistics under `pmap` or `shard_map`.
      activation: None, a name that `jax_convbatch.conv_bias_act` knows, or an
        elementwise function of an array in f32.
      dtype: the dtype to compute in; by default the common dtype of inputs and
        parameters. Inputs are cast to it first.
      param_dtype: of all parameters.
      algorithm, workspace_limit: as in `jax_convbatch.conv_general_dilated`.

    Raises:
      ValueError: when called: an unknown norm; groups that do not divide the features;
        a batch norm without `use_running_average`; statistics or modulation of another
        shape; inputs with several batch axes where the norm is by sample.
      ValueError, TypeError: when called, as `jax_convbatch.norm_act_conv`.
    """

    features: int
    kernel_size: Ints
    strides: Ints | None = 1
    padding: Any = "SAME"
    kernel_dilation: Ints | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    mask: jax.Array | None = None
    norm: str | None = "batch"
    num_groups: int = 32
    use_running_average: bool | None = None
    momentum: float = 0.99
    epsilon: float | None = None
    scale_init: Callable[..., Any] = nn.initializers.ones_init()
    axis_name: Any = None
    activation: Activation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    algorithm: str = "auto"
    workspace_limit: int | None = None

    @nn.compact
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
        """[*batch, *output, K], or that and its statistics.

        Args:
          inputs: [*batch, *spatial, C]; [N, *spatial, C] for a group or instance norm.
          residual: like the result, which it is added to; or None.
          offset: [C] or [*batch, C], added to the inputs, as the time of a diffusion
            model is; or None. The sum is not written to memory.
          modulation: (scale, shift), each [C] or [*batch, C]: what is activated is
            norm(inputs + offset) * (1 + scale) + shift (FiLM); or None.
          statistics: `jax_convbatch.norms.Statistics` of inputs, where they are known,
            as from the `return_statistics` of the layer before; or None. Those by
            sample and channel, [N, C], serve every norm, and an offset needs them.
            Without one, a batch norm also takes [C], and a group norm [N, G] where its
            number of groups divides G.
          return_statistics: "channels" or a number of groups, as the `statistics` of
            `jax_convbatch.norm_act_conv`, of the result; or None.
          use_running_average: as the attribute.
        """
        norm = _norm_act.Norm.of(
            self.norm,
            inputs.shape[-1],
            self.num_groups,
            self.epsilon,
            self.momentum,
            None if self.is_initializing() else self.axis_name,
        )
        x, batch = _norm_act.pixels(self, self.norm, inputs)
        offset = _norm_act.by_sample("offset", offset, x, batch)
        factors: _norm_act.Factors = (None, None)
        if norm.kind is not None:
            frozen = norm.kind == "batch" and nn.merge_param(
                "use_running_average", self.use_running_average, use_running_average
            )
            layer = _Factors(norm, self.scale_init, self.param_dtype, name="norm")
            factors = layer(x, statistics, offset, frozen)
        conv = _Convolution(
            self.features,
            self.kernel_size,
            strides=self.strides,
            padding=self.padding,
            kernel_dilation=self.kernel_dilation,
            feature_group_count=self.feature_group_count,
            use_bias=self.use_bias,
            mask=self.mask,
            dtype=x.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            activation=self.activation,
            algorithm=self.algorithm,
            workspace_limit=self.workspace_limit,
            name="conv",
        )
        factors = _norm_act.composed(factors, offset, modulation, x, batch)
        return conv(x, batch, factors, residual, return_statistics)


class _Factors(nn.Module):
    """The variables of Flax's norm, and the scale and shift that it amounts to."""

    norm: _norm_act.Norm
    scale_init: Callable[..., Any]
    param_dtype: Any

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        statistics: Statistics | None,
        offset: jax.Array | None,
        frozen: bool,
    ) -> _norm_act.Factors:
        norm, shape = self.norm, (self.norm.channels,)
        gamma = self.param("scale", self.scale_init, shape, self.param_dtype)
        zeros = nn.initializers.zeros_init()
        beta = self.param("bias", zeros, shape, self.param_dtype)
        if norm.kind != "batch":
            return norm.of_sums(norm.sums(x, statistics, offset), x, gamma, beta)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if frozen:
            return norm.of_moments(mean.value, var.value, gamma, beta)
        found = norm.sums(x, statistics, offset)
        if not self.is_initializing():
            mean.value, var.value = norm.running(x, found, mean.value, var.value)
        return norm.of_sums(found, x, gamma, beta)


class _Convolution(Conv):
    """`Conv` whose inputs are scaled, shifted and activated first."""

    @nn.compact
    def __call__(  # type: ignore[override]
        self,
        x: jax.Array,
        batch: tuple[int, ...],
        factors: _norm_act.Factors,
        residual: jax.Array | None,
        statistics: str | int | None,
    ) -> Any:
        channels = _call.group_features(self, x.shape[-1])
        x, kernel, bias = arrays(self, x, (channels, self.features))
        return _norm_act.value(
            self, x, batch, kernel, bias, factors, residual, statistics
        )
