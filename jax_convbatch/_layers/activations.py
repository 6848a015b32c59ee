# SPDX-License-Identifier: Apache-2.0
"""The activations of the fused layer, and what their derivatives need saved."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_LEAKY_SLOPE = 0.01  # jax.nn.leaky_relu's default


class Activation(NamedTuple):
    """An elementwise function of the pre-activation z.

    Attributes:
      fn: y = fn(z).
      backward: dz from (saved, dy).
      saves_output: whether `backward` is given y; otherwise it is given z.
    """

    fn: Callable[..., Any]
    backward: Callable[..., Any]
    saves_output: bool


def _from_output(fn: Callable[..., Any], derivative: Callable[..., Any]) -> Activation:
    return Activation(fn, lambda y, dy: dy * derivative(y), True)


def _selected(fn: Callable[..., Any], passes: Callable[..., Any]) -> Activation:
    """dy where `passes(y)`, else 0: no product, so that inf and nan stay out."""
    return Activation(
        fn, lambda y, dy: jnp.where(passes(y), dy, jnp.zeros_like(dy)), True
    )


def _from_input(fn: Callable[..., Any]) -> Activation:
    return Activation(fn, lambda z, dy: jax.vjp(fn, z)[1](dy)[0], False)


def _gelu_exact(z: jax.Array) -> jax.Array:
    return jax.nn.gelu(z, approximate=False)


# ffi/activation.h has the same.
ACTIVATIONS: dict[str, Activation] = {
    "relu": _selected(jax.nn.relu, lambda y: y > 0),
    "relu6": _selected(jax.nn.relu6, lambda y: (y > 0) & (y < 6)),
    "leaky_relu": Activation(
        jax.nn.leaky_relu,
        lambda y, dy: jnp.where(y >= 0, dy, _LEAKY_SLOPE * dy),
        True,
    ),
    "elu": Activation(
        jax.nn.elu, lambda y, dy: jnp.where(y > 0, dy, dy * (y + 1)), True
    ),
    "sigmoid": _from_output(jax.nn.sigmoid, lambda y: y * (1 - y)),
    "tanh": _from_output(jnp.tanh, lambda y: 1 - y * y),
    "gelu": _from_input(jax.nn.gelu),
    "gelu_exact": _from_input(_gelu_exact),
    "silu": _from_input(jax.nn.silu),
}

# What other libraries call them.
_OTHER_NAMES = {
    "gelu_tanh": "gelu",
    "linear": "identity",
    "logistic": "sigmoid",
    "swish": "silu",
}


def lookup(name: object) -> Activation | None:
    """The activation called `name`; None for None and "identity".

    Raises:
      ValueError: unknown name; TypeError: not a name. The message lists the choices.
    """
    if name is None or name == "identity":
        return None
    choices = "None, 'identity', " + ", ".join(map(repr, ACTIVATIONS))
    if not isinstance(name, str):
        got = f"{name!r} of type {type(name).__name__}"
        if hasattr(name, "shape"):  # an array in the wrong place
            got = f"an array of shape {tuple(name.shape)}"
        raise TypeError(f"activation must be a function or one of {choices}, got {got}")
    if name not in ACTIVATIONS:
        raise ValueError(
            f"unknown activation {name!r}; the choices are {choices}, or a function"
            f"{_hint(name)}"
        )
    return ACTIVATIONS[name]


def _hint(name: str) -> str:
    other = _OTHER_NAMES.get(name.lower(), name.lower())
    close = difflib.get_close_matches(other, ["identity", *ACTIVATIONS], 1)
    return f". Did you mean {close[0]!r}?" if close else ""


def signs_of(y: jax.Array, axis: int) -> jax.Array:
    """What relu's derivative needs of y: whether y > 0, in bits.

    Eight neighbours along `axis`, whose size is a multiple of 8, make a byte, the
    first of them its lowest bit. ffi/cuda has the same.
    """
    return jnp.packbits(y > 0, axis=axis, bitorder="little")


def are_positive(signs: jax.Array, axis: int) -> jax.Array:
    """The y > 0 of which `signs_of` made `signs`."""
    return jnp.unpackbits(signs, axis=axis, bitorder="little").astype(bool)
