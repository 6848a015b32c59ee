# SPDX-License-Identifier: Apache-2.0
"""vmap's axis merged into another one, and split out of it again."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def fold_axis(a: jax.Array, batch_axis: int, axis: int, groups: int) -> jax.Array:
    """Merges `batch_axis` into `axis` (counted without it), inside its groups."""
    size = a.shape[batch_axis]
    if groups == 1:  # one transposition: a reshape with an order refuses shardings
        a = jnp.moveaxis(a, batch_axis, axis)
        return a.reshape(
            *a.shape[:axis], size * a.shape[axis + 1], *a.shape[axis + 2 :]
        )
    a = jnp.moveaxis(a, batch_axis, 0)
    shape = a.shape[1:]
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    a = a.reshape(size, *split)
    order = (*range(1, axis + 2), 0, *range(axis + 2, a.ndim))
    folded = (*shape[:axis], size * shape[axis], *shape[axis + 1 :])
    return jax.lax.reshape(a, folded, order)


def unfold(a: jax.Array, axis: int, size: int, groups: int) -> jax.Array:
    """Splits a batch of `size` out of `axis`: its new axis stands before `axis`."""
    whole = a.shape[axis]
    shape = (
        *a.shape[:axis],
        groups,
        size,
        whole // groups // size,
        *a.shape[axis + 1 :],
    )
    a = jnp.swapaxes(a.reshape(shape), axis, axis + 1)
    return a.reshape(*a.shape[: axis + 1], whole // size, *a.shape[axis + 3 :])
