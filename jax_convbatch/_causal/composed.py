# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution in jax.numpy: what it is where there is no kernel.

Arrays have sets of weights first, so that every vmap is a call of the same kind:

    x, y    [G, N, L, C]
    w, bias [G, taps, C] and [G, C], in the accumulator's dtype
    state   [G, N, (taps - 1) * dilation, C], the inputs before x; zeros where none
    ids     [G, N, (taps - 1) * dilation + L], int32: a tap reads inputs of its own id
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_convbatch._layers import activations


class Causal(NamedTuple):
    """What is static about a call.

    Attributes:
      dilation: between two taps.
      activation: "identity" or "silu".
      state, segments: whether state and ids are among the operands, in this order
        behind x, w and bias.
    """

    dilation: int
    activation: str
    state: bool = False
    segments: bool = False

    @property
    def linear(self) -> int:
        """How many operands have derivatives: all but ids."""
        return 3 + self.state

    def named(self, rest: Sequence[Any]) -> tuple[Any, Any]:
        """State and ids of the operands behind bias; None where there is none."""
        left = iter(rest)
        state = next(left) if self.state else None
        return state, next(left) if self.segments else None


def rows(x: jax.Array, state: jax.Array | None, reach: int) -> jax.Array:
    """x with the `reach` inputs before it in front."""
    if state is None:
        return jnp.pad(x, ((0, 0), (0, 0), (reach, 0), (0, 0)))
    return jnp.concatenate([state, x], axis=2)


def composed(
    x: jax.Array, w: jax.Array, bias: jax.Array, *rest: jax.Array, static: Causal
) -> jax.Array:
    state, ids = static.named(rest)
    taps, length = w.shape[1], x.shape[2]
    before = rows(x, state, (taps - 1) * static.dilation)
    z = bias[:, None, None]
    for t in range(taps):
        read = slice(t * static.dilation, t * static.dilation + length)
        row = before[:, :, read].astype(w.dtype)
        if ids is not None:
            own = ids[:, :, ids.shape[2] - length :]
            row = jnp.where((ids[:, :, read] == own)[..., None], row, 0)
        z = z + w[:, None, None, t] * row
    activation = activations.lookup(static.activation)
    return (activation.fn(z) if activation else z).astype(x.dtype)


def of_linear(static: Causal, ids: Sequence[jax.Array]) -> Any:
    """`composed` as a function of the operands that have derivatives."""

    def fun(*operands: jax.Array) -> jax.Array:
        return composed(*operands, *ids, static=static)

    return fun


def composed_tangent(*arrays: jax.Array, static: Causal) -> jax.Array:
    """Of operands, and a tangent for each that has one."""
    count = static.linear
    primals, ids = arrays[:count], arrays[count : count + static.segments]
    dots = arrays[count + static.segments :]
    return jax.jvp(of_linear(static, ids), primals, dots)[1]


def composed_cotangent(*arrays: jax.Array, static: Causal) -> list[jax.Array]:
    """Of operands and dy: dx, dw, dbias and, with a state, its gradient."""
    *operands, dy = arrays
    primals, ids = operands[: static.linear], operands[static.linear :]
    # Only the operands are kept, and z is formed again.
    return list(jax.vjp(of_linear(static, ids), *primals)[1](dy))


def composed_update(
    state: jax.Array, x: jax.Array, w: jax.Array, bias: jax.Array, *, static: Causal
) -> list[jax.Array]:
    """y of one more input, [G, N, C], and the state after it."""
    one = x[:, :, None]
    run = partial(composed, static=static._replace(state=True))
    y = run(one, w, bias, state)
    return [y[:, :, 0], jnp.concatenate([state, one], axis=2)[:, :, 1:]]
