# SPDX-License-Identifier: Apache-2.0
"""A sequence in parts: the inputs that one part's convolution leaves to the next.

The sequence runs along the first spatial axis, on which padding is CAUSAL.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jax_convbatch import _compat
from jax_convbatch._api.arguments import check_arrays
from jax_convbatch._api.edges import Edge


def check_causal(padding: Any, arguments: dict[str, Any]) -> None:
    """
    Args:
      padding: as it was given.
      arguments: of `jax.lax.conv_general_dilated`, with padding of `edges.by_axis`.

    Raises:
      ValueError: padding of the first axis that is not CAUSAL, or dilated inputs there.
    """
    apart = arguments["lhs_dilation"]
    if not apart or arguments["padding"][0] != Edge("CAUSAL"):
        raise ValueError(
            "initial_state and return_final_state need padding 'CAUSAL' along the "
            f"first of {len(apart)} spatial axes, got padding={padding!r}"
        )
    if apart[0] != 1:
        raise ValueError(
            "initial_state and return_final_state need input_dilation 1 along the "
            f"first spatial axis, got {apart[0]}"
        )


def behind(state: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """x behind the inputs before it, which lie as x does (explicit meshes)."""
    if _compat.has_explicit_axes(x):
        sharding = jax.typeof(x).sharding
        spec = list(sharding.spec)
        spec[axis] = None
        place = NamedSharding(sharding.mesh, PartitionSpec(*spec))
        state = jax.sharding.reshard(state, place)
    return jax.lax.concatenate(_compat.auto_insert_reshard(state, x), axis)


def joined(
    x: jax.Array,
    w: jax.Array,
    initial_state: jax.Array | None,
    arguments: dict[str, Any],
    return_final_state: bool,
) -> tuple[jax.Array, Any, jax.Array | None]:
    """x behind the inputs before it, and the inputs before the next part.

    Args:
      x, w: of a part's convolution.
      initial_state: the inputs before x that its outputs see, or None for zeros.
      arguments: of `jax.lax.conv_general_dilated`.
      return_final_state: whether another part follows.

    Returns:
      x, padding and final state: x as it is where there is no state, and None for the
      state where no part follows.

    Raises:
      ValueError: a state of another shape; a part after which the next one would not
        begin with an output.
      TypeError: a state that is no array, or of another dtype than x.
    """
    (rows, _), *others = arguments["padding"]
    numbers = jax.lax.conv_dimension_numbers(
        x.shape, w.shape, arguments["dimension_numbers"]
    )
    axis = numbers.lhs_spec[2]
    size, stride = x.shape[axis], arguments["window_strides"][0]
    if return_final_state and stride > 1 and size % stride:
        raise ValueError(
            "return_final_state needs a part whose length is a multiple of its stride "
            f"{stride}, and x {tuple(x.shape)} has {size} along axis {axis}"
        )
    if initial_state is not None:
        _check(initial_state, x, axis, rows)
        x = behind(initial_state, x, axis) if rows else x
        others.insert(0, (0, 0))
    else:
        others.insert(0, (rows, 0))
    if not return_final_state:
        return x, tuple(others), None
    return x, tuple(others), last(x, axis, rows)


def last(x: jax.Array, axis: int, rows: int) -> jax.Array:
    """The last rows of x; where x has fewer, behind zeros."""
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (rows - x.shape[axis], 0, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), edges)


def _check(state: jax.Array, x: jax.Array, axis: int, rows: int) -> None:
    check_arrays(initial_state=state)
    shape = (*x.shape[:axis], rows, *x.shape[axis + 1 :])
    if tuple(state.shape) != shape:
        raise ValueError(
            f"initial_state must have shape {shape}, the {rows} inputs before x along "
            f"axis {axis}, got {tuple(state.shape)}"
        )
    if state.dtype != x.dtype:
        raise TypeError(
            f"initial_state must have x's dtype {x.dtype.name}, got {state.dtype.name}"
        )
