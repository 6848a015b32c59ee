# SPDX-License-Identifier: Apache-2.0
"""Arrays whose elements are functions of their index, so that none need be kept.

A sum over some elements then needs no array at all, and operands of gigabytes are
made again for every row in the time that a kernel takes to write them.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp


def hashed(index, seed):
    """32 random bits for each index; `index` is uint32 and may wrap around."""
    # Wellons' lowbias32, after a step that takes seeds apart.
    bits = index + jnp.uint32(0x9E3779B9) * jnp.asarray(seed, "uint32")
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return bits ^ (bits >> 16)


def whole(index, seed):
    """A whole number from -2 to 2 for each index, as int32."""
    return ((hashed(index, seed) >> 8) % 5).astype("int32") - 2


def uniform(index, seed):
    """A number of mean 0 and variance 1 for each index, in f32."""
    unit = (hashed(index, seed) >> 8).astype("float32") * 2.0**-23 - 1
    return unit * math.sqrt(3)


KINDS = {"whole": whole, "uniform": uniform}


class Maker:
    """Makes arrays of one shape and dtype. Compiled here, in a thread if wanted."""

    def __init__(self, shape: tuple[int, ...], dtype: str):
        seed = jax.ShapeDtypeStruct((), "uint32")
        self._programs = {
            kind: jax.jit(partial(_array, kind, shape, dtype)).lower(seed).compile()
            for kind in KINDS
        }

    def __call__(self, kind: str, seed: int) -> jax.Array:
        return self._programs[kind](jnp.uint32(seed))


def _array(kind: str, shape, dtype: str, seed):
    index = jax.lax.iota("uint32", math.prod(shape))
    return KINDS[kind](index, seed).astype(dtype).reshape(shape)
