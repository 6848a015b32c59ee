# SPDX-License-Identifier: Apache-2.0
"""Rules of a primitive that follow from what it is composed of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jax_convbatch import _compat


def jvp(
    primitive: _compat.Primitive,
    composed: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    **params: Any,
) -> tuple[Any, Any]:
    """Results of the primitive, and the composition's tangents, in what moves."""
    out = primitive.bind(*primals, **params)
    if all(map(_compat.is_zero, tangents)):
        return out, jax.tree.map(_compat.zero_tangent, out)
    return out, tangents_of(partial(composed, **params), primals, tangents)


def tangents_of(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> Any:
    """Those of function(*primals), where some of `tangents` are no symbolic zeros."""
    moving = [i for i, t in enumerate(tangents) if not _compat.is_zero(t)]

    def of_moving(*arrays: jax.Array) -> Any:
        full = list(primals)
        for i, a in zip(moving, arrays, strict=True):
            full[i] = a
        return function(*full)

    moved, dots = ([a[i] for i in moving] for a in (primals, tangents))
    return jax.jvp(of_moving, moved, dots)[1]


def batched(
    composed: Callable[..., Any],
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> tuple[Any, Any]:
    """Results of the mapped composition, and that they are mapped at axis 0."""
    fun = partial(composed, **params)
    out = jax.vmap(fun, dims, 0, axis_size=axis_data.size)(*args)
    return out, jax.tree.map(lambda _: 0, out)
