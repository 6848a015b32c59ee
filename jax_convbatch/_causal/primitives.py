# SPDX-License-Identifier: Apache-2.0
"""The primitives of the short causal convolution.

    fprop      y from x, w, bias, state and ids
    tangent    dx, dw, dbias, dstate -> dy, linear
    cotangent  dy -> dx, dw, dbias, dstate, in one pass over dy and x; its transpose
    update     y and the next state from a state and one input

Backward keeps the operands and forms the pre-activation again. Derivatives of tangent,
cotangent and update are those of what they are composed of.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_convbatch import _compat
from jax_convbatch._causal import lowering
from jax_convbatch._causal.composed import (
    Causal,
    composed,
    composed_cotangent,
    composed_tangent,
    composed_update,
)
from jax_convbatch._layers import composition
from jax_convbatch._shapes import folding


def fprop(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    state: jax.Array | None,
    ids: jax.Array | None,
    dilation: int,
    activation: str,
) -> jax.Array:
    """y; arrays as in composed.py."""
    static = Causal(dilation, activation, state is not None, ids is not None)
    rest = [a for a in (state, ids) if a is not None]
    return fprop_p.bind(*_compat.auto_insert_reshard(x, w, bias, *rest), static=static)


def update(
    state: jax.Array,
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    dilation: int,
    activation: str,
) -> list[jax.Array]:
    """[y, the state after x]; arrays as in composed.py, x [G, N, C]."""
    arrays = _compat.auto_insert_reshard(state, x, w, bias)
    return update_p.bind(*arrays, static=Causal(dilation, activation))


# --- differentiation ------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, static: Causal
) -> tuple[Any, Any]:
    y = fprop_p.bind(*primals, static=static)
    dots = tangents[: static.linear]
    if all(map(_compat.is_zero, dots)):
        return y, _compat.zero_tangent(y)
    dots = [_compat.instantiate_zeros(t) for t in dots]
    return y, tangent_p.bind(*primals, *dots, static=static)


def _tangent_transpose(ct: Any, *operands: Any, static: Causal) -> list[Any]:
    count = static.linear + static.segments
    primals, linear = operands[:count], operands[count:]
    if _compat.is_zero(ct):
        return [None] * count + [_compat.zero_cotangent(a) for a in linear]
    cts = cotangent_p.bind(*primals, ct, static=static)
    return [None] * count + [
        c if _compat.is_linear_input(a) else None
        for c, a in zip(cts, linear, strict=True)
    ]


# --- vmap -----------------------------------------------------------------------


def _batching(
    primitive: _compat.Primitive,
    weights: int,
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    static: Causal,
) -> tuple[Any, Any]:
    """Mapped samples go into N; where weights are mapped, everything into G.

    Args:
      weights: where w is among the operands; bias is behind it.
    """
    size, of_weights = axis_data.size, (weights, weights + 1)
    if not size:
        of = _COMPOSED[primitive]
        return composition.batched(of, axis_data, args, dims, static=static)
    mapped = any(dims[i] is not None for i in of_weights)
    by_set = mapped or primitive is cotangent_p  # which has dw and dbias
    axis = 0 if by_set else 1

    def fold(i: int, a: jax.Array) -> jax.Array:
        if i in of_weights and not by_set:
            return a
        d = dims[i]
        if d is None:
            a, d = jnp.broadcast_to(a, (size, *a.shape)), 0
        return folding.fold_axis(a, d, axis, 1)

    out = primitive.bind(*itertools.starmap(fold, enumerate(args)), static=static)
    unfolded = jax.tree.map(lambda a: folding.unfold(a, axis, size, 1), out)
    return unfolded, jax.tree.map(lambda _: axis, out)


# --- definition -----------------------------------------------------------------


def _like(which: int) -> tuple[Any, ...]:
    """Rules of a result that lies as operand `which` does."""
    return (
        lambda *arrays, **_: arrays[which].shape,
        lambda *arrays, **_: arrays[which].dtype,
        lambda *arrays, **_: arrays[which].sharding,
    )


fprop_p = _compat.primitive("causal_conv1d", *_like(0))
tangent_p = _compat.primitive("causal_conv1d_tangent", *_like(0))
cotangent_p = _compat.multi_primitive(
    "causal_conv1d_cotangent",
    *map(_like, range(4)),
    count=lambda options: options["static"].linear,
)
update_p = _compat.multi_primitive(
    "causal_conv1d_update", _like(1), _like(0), count=lambda _: 2
)
_compat.defjvp(fprop_p, _jvp)
_compat.defjvp(
    tangent_p,
    partial(composition.jvp, tangent_p, composed_tangent),
    _tangent_transpose,
)
_COMPOSED: dict[_compat.Primitive, Callable[..., Any]] = {
    fprop_p: composed,
    tangent_p: composed_tangent,
    cotangent_p: composed_cotangent,
    update_p: composed_update,
}
for _p in (cotangent_p, update_p):
    _compat.defjvp(_p, partial(composition.jvp, _p, _COMPOSED[_p]))
for _p, _fun in _COMPOSED.items():
    _compat.defjet(_p, _fun)
_compat.defbatching(tangent_p, partial(composition.batched, composed_tangent))
_compat.defsilent(
    tangent_p, _compat.lower_fun(composed_tangent, multiple_results=False)
)
for _p, _op, _weights in (
    (fprop_p, "fprop", 1),
    (cotangent_p, "cotangent", 1),
    (update_p, "update", 2),
):
    _compat.defbatching(_p, partial(_batching, _p, _weights))
    _compat.deflowering(_p, partial(lowering.lower, _op))
