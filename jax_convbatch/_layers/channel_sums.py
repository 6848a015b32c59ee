# SPDX-License-Identifier: Apache-2.0
"""Sums over every axis but the channels', and what a norm in training makes of them.

`sums(a, b)` is the sum of a and that of a b for each channel, `spread(g1, g2, b)` is
g1 + g2 b for each channel: each is the other's transpose. A norm by the batch's
statistics is made of the two, so that its reductions, forward and backward, are one
kernel of this package that reads its operands once. Where there is no such kernel
they are what XLA makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._layers.kept import at_one_axis, broadcast_kept, kept_with
from jax_convbatch._native import names, native, targets
from jax_convbatch._plans import planners
from jax_convbatch._primitives.bias import result_sharding
from jax_convbatch._shapes.geometry import accumulator
from jax_convbatch._sharding import partition

_NATIVE = ("bfloat16", "float16", "float32")
_SAMPLE_ROWS = 64  # of a sample that a block sums, at the least


def sums(
    a: jax.Array, b: jax.Array, kept: tuple[int, ...], narrow: DTypeLike
) -> list[jax.Array]:
    """[the sum of a, the sum of a b] over the axes not in `kept`.

    Args:
      a, b: arrays of one shape, f32 (f64).
      kept: the axes that stay, the channels' last.
      narrow: a dtype that holds what a and b were made of: they are read as that.

    Returns:
      In a's dtype, added in an order that follows from the sizes.
    """
    return sums_p.bind(a, b, kept=tuple(kept), narrow=np.dtype(narrow))


def spread(
    g1: jax.Array, g2: jax.Array, b: jax.Array, kept: tuple[int, ...], narrow: DTypeLike
) -> jax.Array:
    """g1 + g2 b, where g1 and g2 have one number for each of `kept`."""
    return spread_p.bind(g1, g2, b, kept=tuple(kept), narrow=np.dtype(narrow))


def of_groups(by_channel: Sequence[jax.Array], groups: int) -> list[jax.Array]:
    """Sums by sample and group, of sums by sample and channel [N, C]."""
    n, channels = by_channel[0].shape
    shape = (n, groups, channels // groups)
    return [a.reshape(shape).sum(-1) for a in by_channel]


def moments(
    total: jax.Array, squares: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance, of sums of `count` numbers and of their squares."""
    mean = total / count
    return mean, jnp.maximum(0.0, squares / count - mean * mean)


def normalized(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x by the statistics of the batch: `flax.linen.BatchNorm` in training.

    Args:
      x: [..., K].
      scale, bias: [K] in f32 or wider.
      epsilon: added to the variance.

    Returns:
      y like x; mean and variance [K], those of `use_fast_variance`.
    """
    wide = x.astype(accumulator(x.dtype))
    kept, narrow = (x.ndim - 1,), x.dtype
    count = math.prod(x.shape[:-1])
    s1, s2 = sums(wide, wide, kept, narrow)
    mean, var = moments(s1, s2, count)
    scale = scale * jax.lax.rsqrt(var + epsilon)
    y = spread(bias - mean * scale, scale, wide, kept, narrow)
    return y.astype(x.dtype), mean, var


# --- lowering -----------------------------------------------------------------


def _chunk_rows(rows: int, channels: int, itemsize: int) -> int:
    """Rows that one block sums: two or four blocks for each multiprocessor of a
    large GPU, were there one sample, from its sizes alone."""
    vector = 16 // itemsize if channels % (16 // itemsize) == 0 else 1
    tiles = -(-channels // (32 * vector))
    blocks = 528 if rows * channels * itemsize > 8 << 20 else 264
    return max(1, -(-rows * tiles // blocks))


def _stock_sums(
    a: jax.Array, b: jax.Array, *, kept: tuple[int, ...], narrow: np.dtype | None = None
) -> list[jax.Array]:
    summed = [i for i in range(a.ndim) if i not in kept]
    order = (*kept, *summed)
    axes = range(len(kept), a.ndim)
    return [jnp.sum(c.transpose(order), axes) for c in (a, a * b)]


def _stock_spread(
    g1: jax.Array,
    g2: jax.Array,
    b: jax.Array,
    *,
    kept: tuple[int, ...],
    narrow: np.dtype | None = None,
) -> jax.Array:
    g1, g2 = (broadcast_kept(g, b.shape, kept) for g in (g1, g2))
    return g1 + g2 * b


def _local_sums(
    kept: tuple[int, ...], narrow: np.dtype, a: jax.Array, b: jax.Array
) -> list[jax.Array]:
    if a.size == 0:
        return _stock_sums(a, b, kept=kept)
    *samples, channels = (a.shape[i] for i in kept)
    count = math.prod(samples)
    rows = a.size // (count * channels)
    chunk = _chunk_rows(rows, channels, narrow.itemsize)
    if samples:  # many fill a GPU: their parts' sums shall be fewer than they are
        chunk = max(chunk, min(rows, _SAMPLE_ROWS))
    summed = tuple(i for i in range(a.ndim) if i not in kept)
    layout = (*kept[:-1], *summed, kept[-1])
    order = tuple(range(len(kept)))
    s1, s2, _ = native.ffi_call(
        names.of_channels("conv_channel_sums", channels, narrow),
        "jax_convbatch_channel_sums",
        [
            jax.ShapeDtypeStruct((*samples, channels), np.float32),
            jax.ShapeDtypeStruct((*samples, channels), np.float32),
            jax.ShapeDtypeStruct(
                (planners.aligned(count * -(-rows // chunk) * 2 * channels, 4),),
                np.uint8,
            ),
        ],
        input_layouts=[layout, layout],
        output_layouts=[order, order, (0,)],
    )(
        a.astype(narrow),
        b.astype(narrow),
        samples=np.int64(count),
        rows=np.int64(rows),
        K=np.int64(channels),
        chunk_rows=np.int64(chunk),
    )
    return [s1, s2]


def _sums_lowering(
    native: bool,
    ctx: _compat.LoweringRuleContext,
    a: Any,
    b: Any,
    *,
    kept: tuple[int, ...],
    narrow: np.dtype,
) -> list[Any]:
    aval = ctx.avals_in[0]
    native &= narrow.name in _NATIVE and aval.dtype == np.float32
    fun: Callable[..., Any]
    if not native or targets.problem("cuda"):
        fun = partial(_stock_sums, kept=kept)
    else:
        fun = partial(_local_sums, kept, narrow)
        if _compat.partitions(ctx):
            fun = partition.partitioned_sums(fun, aval.ndim, kept, 2)
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, a, b)
    return _compat.with_sharding(ctx, out)


def _spread_lowering(
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    kept: tuple[int, ...],
    narrow: np.dtype,
) -> list[Any]:
    fun = partial(_stock_spread, kept=kept)
    out = _compat.lower_fun(fun, multiple_results=False)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _sums_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, ...]:
    (a, b), (da, db) = primals, tangents
    out = sums_p.bind(a, b, **params)
    first, second = map(_compat.zero_tangent, out)
    if not _compat.is_zero(da):
        first, second = sums_p.bind(da, b, **params)
    if not _compat.is_zero(db):
        more = sums_p.bind(db, a, **params)[1]
        second = more if _compat.is_zero(second) else second + more
    return out, [first, second]


def _sums_transpose(
    cts: Sequence[Any], a: Any, b: jax.Array, **params: Any
) -> list[Any]:
    # Tangents stand at the first place.
    if all(map(_compat.is_zero, cts)):
        return [_compat.zero_cotangent(a), None]
    g1, g2 = map(_compat.instantiate_zeros, cts)
    return [spread_p.bind(g1, g2, b, **params), None]


def _spread_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[jax.Array, jax.Array]:
    g1, g2, b = primals
    d1, d2, db = tangents
    out = spread_p.bind(g1, g2, b, **params)
    terms = []
    if not (_compat.is_zero(d1) and _compat.is_zero(d2)):
        d1, d2 = map(_compat.instantiate_zeros, (d1, d2))
        terms.append(spread_p.bind(d1, d2, b, **params))
    if not _compat.is_zero(db):
        terms.append(spread_p.bind(jnp.zeros_like(g1), g2, db, **params))
    return out, sum(terms[1:], terms[0]) if terms else _compat.zero_tangent(out)


def _spread_transpose(ct: Any, g1: Any, g2: Any, b: Any, **params: Any) -> list[Any]:
    linear = [_compat.is_linear_input(x) for x in (g1, g2, b)]
    if _compat.is_zero(ct):
        return [_compat.zero_cotangent(x) for x in (g1, g2, b)]
    if linear[2]:
        return [None, None, spread_p.bind(jnp.zeros_like(g2), g2, ct, **params)]
    s1, s2 = sums_p.bind(ct, b, **params)
    return [s1 if linear[0] else None, s2 if linear[1] else None, None]


# --- vmap -----------------------------------------------------------------------


def _sums_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    kept: tuple[int, ...],
    narrow: np.dtype,
) -> tuple[Any, ...]:
    (a, b), at = at_one_axis(args, dims, axis_data.size)
    kept = kept_with(at, kept)
    return sums_p.bind(a, b, kept=kept, narrow=narrow), [0, 0]


def _spread_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    kept: tuple[int, ...],
    narrow: np.dtype,
) -> tuple[Any, Any]:
    *gs, b = args
    gs = [
        jnp.broadcast_to(g, (axis_data.size, *g.shape))
        if d is None
        else jnp.moveaxis(g, d, 0)
        for g, d in zip(gs, dims, strict=False)
    ]
    (b,), at = (
        ([jnp.broadcast_to(b, (axis_data.size, *b.shape))], 0)
        if dims[2] is None
        else ([b], dims[2])
    )
    kept = kept_with(at, kept)
    return spread_p.bind(*gs, b, kept=kept, narrow=narrow), at


# --- definition -----------------------------------------------------------------

_PER_CHANNEL = (
    lambda a, b, *, kept, **_: tuple(a.shape[i] for i in kept),
    lambda a, b, **_: a.dtype,
    lambda a, b, *, kept, **_: result_sharding(a, kept=kept, out_sharding=None),
)
sums_p = _compat.multi_primitive(
    "conv_channel_sums", _PER_CHANNEL, _PER_CHANNEL, count=lambda params: 2
)
spread_p = _compat.primitive(
    "conv_channel_spread",
    lambda g1, g2, b, **_: b.shape,
    lambda g1, g2, b, **_: b.dtype,
    lambda g1, g2, b, **_: b.sharding,
)
_compat.defjvp(sums_p, _sums_jvp, _sums_transpose)
_compat.defjvp(spread_p, _spread_jvp, _spread_transpose)
_compat.defjet(sums_p, _stock_sums)
_compat.defjet(spread_p, _stock_spread)
_compat.defbatching(sums_p, _sums_batching)
_compat.defbatching(spread_p, _spread_batching)
_compat.defsilent(sums_p, partial(_sums_lowering, True), platform="cuda")
_compat.defsilent(sums_p, partial(_sums_lowering, False))
_compat.defsilent(spread_p, _spread_lowering)
