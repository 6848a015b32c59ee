# SPDX-License-Identifier: Apache-2.0
"""What norm_act.py and its derivative share: what is static, plans, the composition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._layers import activations, channel_sums, fused
from jax_convbatch._native import hopper
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._primitives import primitives
from jax_convbatch._shapes.geometry import accumulator

Function = Callable[[jax.Array], jax.Array]


class NormAct(NamedTuple):
    """What is static about a call.

    Attributes:
      params: the convolution, of channels-last arrays.
      activation: a name of `activations.ACTIVATIONS`, or "identity".
      bias, residual: whether there is one.
      statistics: None; or what sums of the result there are besides: "channels", or
        a number of groups, by sample.
    """

    params: ConvParams
    activation: str
    bias: bool
    residual: bool
    statistics: str | int | None

    def named(self, rest: Sequence[Any]) -> dict[str, Any]:
        """Operands after scale and shift by name; None where there is none."""
        left = iter(rest)
        return {
            "bias": next(left) if self.bias else None,
            "residual": next(left) if self.residual else None,
        }

    def describe(self) -> str:
        words = ["scale and shift"]
        words += [self.activation] if self.activation != "identity" else []
        words += ["bias"] * self.bias + ["residual"] * self.residual
        words += ["sums of the result"] * (self.statistics is not None)
        return ", ".join(words)


def plan(
    static: NormAct, dtype: DTypeLike, platform: str, op: str = "fprop"
) -> dict[str, Any] | None:
    """How the kernel runs, or None where there is none or it is slower than `composed`.

    Without a `workspace_limit`, whether there is one does not depend on the batch, so
    that a sample's bits do not.

    Args:
      op: "fprop", or "dgrad" for the gradient.
    """
    params = static.params
    g = params.geometry
    # A kernel of its own answers to no other engine's name.
    if platform != "cuda" or params.algorithm not in ("auto", "implicit_gemm"):
        return None
    if np.dtype(dtype).name not in ("bfloat16", "float16") or 0 in (g.N, g.C, g.K):
        return None
    found = hopper.norm_act_plan(op, g, np.dtype(dtype).name, static.activation)
    if found is None or not found["preferred"]:
        return None
    if op == "fprop" and static.statistics is None:
        found = {**found, "workspace": 0}
    limit = params.workspace_limit
    return found if limit is None or found["workspace"] <= limit else None


def activated(
    fn: Function | None,
    x: jax.Array,
    scale: jax.Array | None,
    shift: jax.Array | None,
) -> jax.Array:
    """fn(scale * x + shift), in x's dtype."""
    wide = accumulator(x.dtype)

    def of_pixels(a: jax.Array) -> jax.Array:
        samples = a.shape[:-1] or (1,)
        return a.reshape(*samples, *(1,) * (x.ndim - 2), a.shape[-1]).astype(wide)

    z = x.astype(wide)
    if scale is not None:
        z = z * of_pixels(scale)
    if shift is not None:
        z = z + of_pixels(shift)
    return (fn(z) if fn else z).astype(x.dtype)


def sums_of(y: jax.Array, statistics: str | int) -> list[jax.Array]:
    """Sums of y and of its squares, in f32 (f64 of f64): by channel, or by sample and
    group of channels."""
    wide, last = y.astype(accumulator(y.dtype)), y.ndim - 1
    if statistics == "channels":
        return channel_sums.sums(wide, wide, (last,), y.dtype)
    # By channel first: two levels of sums.
    by_channel = channel_sums.sums(wide, wide, (0, last), y.dtype)
    return channel_sums.of_groups(by_channel, int(statistics))


def without_sums(
    x: jax.Array,
    w: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    *rest: jax.Array,
    static: NormAct,
) -> jax.Array:
    chosen = activations.lookup(static.activation)
    h = activated(chosen.fn if chosen else None, x, scale, shift)
    named = static.named(rest)
    if not rest:
        return primitives.bind("fprop", h, w, static.params)
    return fused.layer(h, w, static.params, **named)


def composed(*arrays: jax.Array, static: NormAct) -> list[jax.Array]:
    y = without_sums(*arrays, static=static)
    return [y] if static.statistics is None else [y, *sums_of(y, static.statistics)]
