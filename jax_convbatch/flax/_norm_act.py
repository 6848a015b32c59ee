# SPDX-License-Identifier: Apache-2.0
"""What the layers `NormActConv` of linen and nnx do alike.

`layer` is the module that is called: the attributes read here have the same names
in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_convbatch._api.arguments import per_axis
from jax_convbatch._layers import channel_sums
from jax_convbatch.flax import _call
from jax_convbatch.norms import (
    Statistics,
    norm_act_conv,
    scale_and_shift,
    statistics_of,
)

NORMS = ("batch", "group", "instance")
Factors = tuple[jax.Array | None, jax.Array | None]


class Norm(NamedTuple):
    """The norm of a layer; `of` checks it.

    Attributes:
      kind: of `NORMS`, or None.
      channels: C.
      groups: whose statistics are one: of a group or instance norm.
      epsilon, momentum, axis_name: as in Flax's norms.
    """

    kind: str | None
    channels: int
    groups: int
    epsilon: float
    momentum: float
    axis_name: Any

    @classmethod
    def of(
        cls,
        kind: str | None,
        channels: int,
        num_groups: int,
        epsilon: float | None,
        momentum: float,
        axis_name: Any,
    ) -> Norm:
        """Raises ValueError: an unknown norm, groups that do not divide C."""
        if kind is not None and kind not in NORMS:
            choices = ", ".join(map(repr, NORMS))
            raise ValueError(f"norm must be one of {choices}, or None, got {kind!r}")
        if kind == "group" and (num_groups < 1 or channels % num_groups):
            raise ValueError(
                f"num_groups={num_groups} must divide the {channels} features of the "
                "input"
            )
        if epsilon is None:
            epsilon = 1e-5 if kind == "batch" else 1e-6
        groups = num_groups if kind == "group" else channels
        return cls(kind, channels, groups, epsilon, momentum, axis_name)

    def sums(
        self, x: jax.Array, given: Statistics | None, offset: jax.Array | None
    ) -> Statistics:
        """Those that the norm is made of: of x + offset.

        Args:
          x: [N, *spatial, C].
          given: of x, where they are known.
          offset: [C] or [N, C], or None.

        Raises:
          ValueError: statistics that this norm cannot be made of.
        """
        batch, n = self.kind == "batch", x.shape[0]
        by_channel = offset is not None
        if given is None:
            own = "channels" if batch else self.groups
            found = statistics_of(x, self.channels if by_channel else own)
        else:
            self._check(given, n, by_channel)
            found = Statistics(*given)
        if offset is not None:
            found = _moved(found, offset, math.prod(x.shape[1:-1]))
        if batch and found.sum.ndim == 2:
            found = Statistics(*(a.sum(0) for a in found))
        elif not batch:
            found = Statistics(*channel_sums.of_groups(found, self.groups))
        if self.axis_name is not None:
            # Means are averaged, as in Flax: the count stays that of one device.
            found = Statistics(*jax.lax.pmean(tuple(found), self.axis_name))
        return found

    def _check(self, given: Statistics, n: int, by_channel: bool) -> None:
        shape = given[0].shape
        if by_channel:
            wanted = f"({n}, {self.channels}), as there is an offset"
            fits = shape == (n, self.channels)
        elif self.kind == "batch":
            wanted = f"({self.channels},) or ({n}, {self.channels})"
            fits = shape in ((self.channels,), (n, self.channels))
        else:
            wanted = (
                f"({n}, G), where G is a multiple of {self.groups} and divides "
                f"{self.channels}"
            )
            fits = len(shape) == 2 and shape[0] == n and shape[1] > 0
            fits = fits and not shape[1] % self.groups and not self.channels % shape[1]
        if not fits or given[1].shape != shape:
            raise ValueError(
                f"statistics must be two arrays of shape {wanted}, for a "
                f"{self.kind} norm of these inputs, got {shape} and {given[1].shape}"
            )

    def of_sums(
        self, found: Statistics, x: jax.Array, gamma: jax.Array, beta: jax.Array
    ) -> Factors:
        """scale and shift of the norm by these statistics."""
        return scale_and_shift(found, x.shape, gamma, beta, epsilon=self.epsilon)

    def of_moments(
        self, mean: jax.Array, var: jax.Array, gamma: jax.Array, beta: jax.Array
    ) -> Factors:
        """scale and shift of a batch norm by its running statistics."""
        scale = gamma * jax.lax.rsqrt(var + self.epsilon)
        return scale, beta - mean * scale

    def running(
        self, x: jax.Array, found: Statistics, mean: jax.Array, var: jax.Array
    ) -> list[jax.Array]:
        """The running mean and variance after a batch with these statistics."""
        count = max(1, x.size // max(1, self.channels))
        new = channel_sums.moments(found.sum, found.squares, count)
        kept = self.momentum
        return [
            kept * a + (1 - kept) * b for a, b in zip((mean, var), new, strict=True)
        ]


def pixels(
    layer: Any, kind: str | None, inputs: jax.Array
) -> tuple[jax.Array, tuple[int, ...]]:
    """inputs as [N, *spatial, C] in the dtype to compute in, and its batch axes.

    Raises:
      ValueError: too few axes; several batch axes, or none, before a norm by sample.
    """
    dtype = layer.dtype or jnp.promote_types(inputs.dtype, layer.param_dtype)
    rank = _rank(layer)
    x, batch = _call.one_batch_axis(inputs.astype(dtype), rank)
    if kind in ("group", "instance") and len(batch) != 1:
        raise ValueError(
            f"inputs of a layer with norm={kind!r} must be [N, *spatial, C], with one "
            f"batch axis and {rank} spatial axes, got shape {tuple(inputs.shape)}"
        )
    return x, batch


def by_sample(
    name: str, a: jax.Array | None, x: jax.Array, batch: tuple[int, ...]
) -> jax.Array | None:
    """a as [C] or [N, C], in f32 (f64 of f64).

    Raises:
      ValueError: an array that is neither [C] nor [*batch, C].
    """
    if a is None:
        return None
    channels = x.shape[-1]
    shapes = ((channels,), (*batch, channels))
    if a.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} must have shape {wanted}, got {a.shape}")
    wide = a.astype(jnp.promote_types(a.dtype, jnp.float32))
    return wide if a.ndim == 1 else wide.reshape(-1, channels)


def composed(
    factors: Factors,
    offset: jax.Array | None,
    modulation: Sequence[jax.Array] | None,
    x: jax.Array,
    batch: tuple[int, ...],
) -> Factors:
    """Factors of x that make norm(x + offset) * (1 + scale) + shift.

    Raises:
      ValueError: a modulation that is no pair; scale or shift that are neither [C] nor
        [*batch, C].
    """
    scale, shift = factors
    if offset is not None:
        if scale is not None and shift is not None:
            shift = shift + scale * offset
        else:
            shift = offset
    if modulation is None:
        return scale, shift
    if not isinstance(modulation, tuple | list) or len(modulation) != 2:
        of = getattr(modulation, "shape", None)
        got = f"{modulation!r}" if of is None else f"an array of shape {of}"
        raise ValueError(f"modulation must be a pair (scale, shift), got {got}")
    more, after = (
        by_sample(f"the {name} of modulation", a, x, batch)
        for name, a in zip(("scale", "shift"), modulation, strict=True)
    )
    assert more is not None and after is not None
    more = 1 + more
    return (
        more if scale is None else scale * more,
        after if shift is None else shift * more + after,
    )


def value(
    layer: Any,
    x: jax.Array,
    batch: tuple[int, ...],
    kernel: Any,
    bias: jax.Array | None,
    factors: Factors,
    residual: jax.Array | None,
    statistics: str | int | None,
) -> Any:
    """The value of the layer: [*batch, *output, K], and statistics if they are asked.

    `kernel` and `bias` come in x's dtype.
    """
    rank = _rank(layer)
    if residual is not None:
        residual = _call.one_batch_axis(residual, rank)[0]
        if jnp.promote_types(residual.dtype, x.dtype) != x.dtype:
            raise TypeError(
                f"residual is {residual.dtype.name}, and the layer computes in "
                f"{x.dtype.name}: cast one of them"
            )
        residual = residual.astype(x.dtype)
    scale, shift = factors
    dilation = 1 if layer.kernel_dilation is None else layer.kernel_dilation
    options: dict[str, Any] = dict(
        scale=scale,
        shift=shift,
        activation=layer.activation,
        residual=residual,
        strides=per_axis("strides", layer.strides or 1, rank),
        padding=layer.padding,
        dilation=per_axis("kernel_dilation", dilation, rank),
        groups=layer.feature_group_count,
        precision=layer.precision,
        algorithm=layer.algorithm,
        workspace_limit=layer.workspace_limit,
    )
    if statistics is None:
        y = norm_act_conv(x, kernel, bias, **options)
        return y.reshape(*batch, *y.shape[1:])
    y, found = norm_act_conv(x, kernel, bias, **options, statistics=statistics)
    return y.reshape(*batch, *y.shape[1:]), found


def _moved(found: Statistics, offset: jax.Array, count: int) -> Statistics:
    """By sample and channel, of an array and offset, from those of the array."""
    total, squares = found
    return Statistics(
        total + count * offset,
        squares + offset * (2 * total + count * offset),
    )


def _rank(layer: Any) -> int:
    size = layer.kernel_size
    return 1 if isinstance(size, int) else len(size)
