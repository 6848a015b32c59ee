# SPDX-License-Identifier: Apache-2.0
"""The axes that a sum keeps, batch axes of vmap first and the channels' last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def broadcast_kept(
    db: jax.Array, shape: Sequence[int], kept: tuple[int, ...]
) -> jax.Array:
    """One number for each of the `kept` axes, repeated into `shape`."""
    order = sorted(range(len(kept)), key=kept.__getitem__)
    return jax.lax.broadcast_in_dim(db.transpose(order), shape, sorted(kept))


def at_one_axis(arrays: Any, dims: Sequence[Any], size: int) -> tuple[Any, ...]:
    """The arrays with their mapped axis at the same place, and that place."""
    at = next(d for d in dims if d is not None)
    moved = [
        jnp.broadcast_to(jnp.expand_dims(a, at), (*a.shape[:at], size, *a.shape[at:]))
        if d is None
        else jnp.moveaxis(a, d, at)
        for a, d in zip(arrays, dims, strict=True)
    ]
    return moved, at


def kept_with(at: int, kept: tuple[int, ...]) -> tuple[int, ...]:
    """`kept` where vmap's axis is number `at`, first among those that stay."""
    return (at, *(i + (i >= at) for i in kept))
