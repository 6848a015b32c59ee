# SPDX-License-Identifier: Apache-2.0
"""How the short causal convolution runs: FFI calls, or what it is composed of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch import _compat
from jax_convbatch._causal import partitioning
from jax_convbatch._causal.composed import (
    Causal,
    composed,
    composed_cotangent,
    composed_update,
)
from jax_convbatch._native import names, native, targets

MOST_TAPS = 8  # of a kernel: kMostTaps in ffi/cuda/sm80/causal_conv1d
_DTYPES = {
    "cpu": ("float64", "float32", "float16", "bfloat16"),
    "cuda": ("float32", "float16", "bfloat16"),
}


def problem(x: Any, taps: int, dilation: int, platform: str, *ids: Any) -> str | None:
    """Why no kernel runs, or None.

    Args:
      x: the input, or its shape and dtype.
      taps, dilation: of the filter.
      platform: by the plan's name.
      ids: those of segments, where there are any.
    """
    if why := targets.problem(platform):
        return why
    if taps > MOST_TAPS:
        return f"{taps} taps (kernels: at most {MOST_TAPS})"
    if (name := np.dtype(x.dtype).name) not in _DTYPES[platform]:
        return f"dtype {name} (kernels: {', '.join(_DTYPES[platform])})"
    if any(a.dtype.itemsize > 4 for a in ids):
        return "segment_ids of 64 bits"
    if not _compat.is_constant_shape(x.shape):
        return "symbolic sizes"
    if 0 in x.shape:
        return "an empty array"
    apart = dilation * x.shape[-1] * x.dtype.itemsize
    rows = (taps - 1) * dilation + x.shape[-2]
    if platform == "cuda" and max(apart, rows) >= 1 << 31:
        return "taps over 2^31 - 1 rows or bytes apart"
    return None


# --- on one device --------------------------------------------------------------


def _call(
    op: str,
    x: jax.Array,
    taps: int,
    target: str,
    results: Any,
    static: Causal,
    **how: Any,
) -> Callable[..., Any]:
    activation = "" if static.activation == "identity" else static.activation
    dilation = f"d{static.dilation}" if static.dilation > 1 else ""
    channels = x.shape[-1]
    name = names.of_channels(f"{op} {taps}", channels, x.dtype, dilation, activation)
    call = native.ffi_call(name, target, results, **how)
    return partial(
        call, dilation=np.int64(static.dilation), activation=static.activation
    )


def _operands(static: Causal, x: jax.Array, rest: Sequence[jax.Array]) -> list[Any]:
    """State and ids, empty where there are none."""
    state, ids = static.named(rest)
    g, n, _, c = x.shape
    return [
        jnp.zeros((g, n, 0, c), x.dtype) if state is None else state,
        jnp.zeros((g, n, 0), np.int32) if ids is None else ids,
    ]


def _like(a: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


def _fprop(
    static: Causal, x: jax.Array, w: jax.Array, bias: jax.Array, *rest: jax.Array
) -> jax.Array:
    call = _call(
        "causal_conv1d", x, w.shape[1], "jax_convbatch_causal_conv1d", _like(x), static
    )
    return call(x, w, bias, *_operands(static, x, rest))


def _cotangent(
    platform: str,
    static: Causal,
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    *more: jax.Array,
) -> list[jax.Array]:
    *rest, dy = more
    state, ids = _operands(static, x, rest)
    sums = targets.causal_sums(platform, x.shape, w.shape[1], static.dilation)
    workspace = jax.ShapeDtypeStruct((sums * w.dtype.itemsize,), np.uint8)
    results = [*map(_like, (x, w, bias, state)), workspace]
    target = "jax_convbatch_causal_conv1d_grad"
    call = _call("causal_conv1d_grad", x, w.shape[1], target, results, static)
    return list(call(x, w, bias, state, ids, dy))[: static.linear]


def _update(
    static: Causal, state: jax.Array, x: jax.Array, w: jax.Array, bias: jax.Array
) -> list[jax.Array]:
    one_set = x.shape[0] == 1
    if one_set:  # in the shapes that users give: between others XLA copies the state
        state, x = state[0], x[0]
    target, in_place = "jax_convbatch_causal_conv1d_update", {0: 1}
    call = _call(
        *("causal_conv1d_update", x, w.shape[1], target),
        [_like(x), _like(state)],
        static,
        input_output_aliases=in_place,
    )
    out = call(state, x, w, bias)
    return [a[None] if one_set else a for a in out]


# Of each operation what one device runs, and the composition.
_RUNS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "fprop": (_fprop, composed),
    "cotangent": (_cotangent, composed_cotangent),
    "update": (_update, composed_update),
}

# --- lowering -------------------------------------------------------------------


def lower(
    op: str,
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    static: Causal,
) -> list[Any]:
    """`op`: "fprop", "cotangent" or "update"."""
    platform = platform or ctx.module_context.platforms[0]
    x, w = ctx.avals_in[1:3] if op == "update" else ctx.avals_in[:2]
    ids = [a for a in ctx.avals_in if jnp.issubdtype(a.dtype, jnp.integer)]
    native, stock = _RUNS[op]
    fun: Callable[..., Any] = partial(stock, static=static)
    if problem(x, w.shape[1], static.dilation, platform, *ids) is None:
        if op == "cotangent":
            native = partial(native, platform)
        fun = partial(native, static)
        if _compat.partitions(ctx):
            fun = partitioning.partitioned(partitioning.Local(native, static, op))
    several = len(ctx.avals_out) > 1
    out = _compat.lower_fun(fun, multiple_results=several)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)
