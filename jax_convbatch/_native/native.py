# SPDX-License-Identifier: Apache-2.0
"""Calls of native code, each under a name that tells what it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jax_convbatch import _compat
from jax_convbatch._compat import names as _compat_names


def ffi_call(
    name: str, target: str, results: Any, **options: Any
) -> Callable[..., Any]:
    """As `jax.ffi.ffi_call`, but called `name` where JAX says "ffi_call".

    Args:
      name: as names.py makes them, for compiled programs and profiles.
      target, results, options: of `jax.ffi.ffi_call`.

    Returns:
      A function of arrays and, as keywords, attributes.
    """
    call = jax.ffi.ffi_call(target, results, **options)

    def named(*arrays: jax.Array, **attributes: Any) -> Any:
        arrays = _compat.auto_insert_reshard(*arrays)
        trace = jax.make_jaxpr(partial(call, **attributes), return_shape=True)
        traced, shapes = trace(*arrays)
        (eqn,) = traced.eqns
        out = _compat_names.named_ffi_call_p.bind(*arrays, name=name, **eqn.params)
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    return named


def title(jaxpr: Any, default: str) -> str:
    """The name of the first call in a jaxpr, or a default."""
    calls = (e for e in jaxpr.eqns if e.primitive is _compat_names.named_ffi_call_p)
    return next((call.params["name"] for call in calls), default)
