# SPDX-License-Identifier: Apache-2.0
"""The bias as a pair of linear primitives: broadcast, and its transpose bgrad.

bgrad sums dy over the batch and the pixels with a kernel of this package, in an
order fixed by the number of rows. Written as primitives, both modes of
differentiation reach that kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._native import names, native, targets
from jax_convbatch._plans import planners
from jax_convbatch._select import plan
from jax_convbatch._sharding import partition

BGRAD_ATTRIBUTES = ("B", "rows", "K", "chunk_rows")


def bias_grad(
    dy: jax.Array, kept: int | tuple[int, ...], *, out_sharding: Any = None
) -> jax.Array:
    """db[K]: the sum of dy over every axis but the channels'.

    Args:
      dy: any shape with K channels; f64, f32, f16 or bf16.
      kept: the axis of the channels; or the axes that stay, that one last.
      out_sharding: of the result, under a mesh with explicit axes.

    Returns:
      [K] in dy's dtype, accumulated in f32 (f64 for f64) in a fixed order.
    """
    kept = (kept,) if isinstance(kept, int) else kept
    return bgrad_p.bind(
        dy,
        kept=tuple(axis % dy.ndim for axis in kept),
        out_sharding=_compat.canonicalize_sharding(out_sharding, "bias_grad"),
    )


def broadcast_bias(
    bias: jax.Array,
    shape: Sequence[int],
    channel_axis: int,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """`bias` [K] repeated into `shape`; its transpose is `bias_grad`."""
    return broadcast_p.bind(
        bias,
        shape=tuple(shape),
        kept=(channel_axis % len(shape),),
        out_sharding=_compat.canonicalize_sharding(out_sharding, "broadcast_bias"),
    )


# `kept` lists the axes that bgrad keeps, batch axes of vmap first, channel last.


def _bgrad_shape(dy: Any, *, kept: tuple[int, ...], **_: Any) -> tuple[int, ...]:
    return tuple(dy.shape[i] for i in kept)


def _bgrad_transpose(ct: Any, dy: Any, *, kept: tuple[int, ...], **_: Any) -> list[Any]:
    aval = dy.aval
    return [
        broadcast_p.bind(
            ct,
            shape=aval.shape,
            kept=kept,
            out_sharding=_compat.canonicalize_sharding(aval.sharding, "bias_grad"),
        )
    ]


def _broadcast_transpose(
    ct: Any, bias: Any, *, kept: tuple[int, ...], **_: Any
) -> list[Any]:
    if _compat.is_zero(ct):
        return [_compat.zero_cotangent(bias)]
    sharding = _compat.canonicalize_sharding(bias.aval.sharding, "broadcast_bias")
    return [bgrad_p.bind(ct, kept=kept, out_sharding=sharding)]


def with_batch_axis(
    sharding: NamedSharding | None, axis: int, axis_data: _compat.AxisData
) -> NamedSharding | None:
    if sharding is None:
        return None
    spec = list(sharding.spec)
    spec.insert(axis, axis_data.explicit_mesh_axis)
    return NamedSharding(sharding.mesh, PartitionSpec(*spec))


def _bgrad_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    kept: tuple[int, ...],
    out_sharding: Any,
) -> tuple[Any, Any]:
    (dy,), (d,) = args, dims
    kept = (d, *(i + (i >= d) for i in kept))
    sharding = with_batch_axis(out_sharding, 0, axis_data)
    return bgrad_p.bind(dy, kept=kept, out_sharding=sharding), 0


def _broadcast_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    shape: Sequence[int],
    kept: tuple[int, ...],
    out_sharding: Any,
) -> tuple[Any, Any]:
    (bias,), (d,) = args, dims
    bias = jnp.moveaxis(bias, d, 0)
    out = broadcast_p.bind(
        bias,
        shape=(bias.shape[0], *shape),
        kept=(0, *(i + 1 for i in kept)),
        out_sharding=with_batch_axis(out_sharding, 0, axis_data),
    )
    return out, 0


def result_sharding(
    a: Any,
    *,
    shape: Sequence[int] | None = None,
    kept: tuple[int, ...],
    out_sharding: Any,
    **_: Any,
) -> NamedSharding:
    if out_sharding is not None:
        return out_sharding
    ndim = len(shape) if shape is not None else len(kept)
    return NamedSharding(a.sharding.mesh, PartitionSpec(*[None] * ndim))


# --- lowering -----------------------------------------------------------------


def native_reason(dtype: DTypeLike, platform: str) -> str | None:
    """Why the native bgrad kernel does not run here, or None."""
    return plan.unsupported(dtype, dtype, 0) or targets.problem(platform)


class BgradSizes(NamedTuple):
    """dy as [B, rows, K] and what summing the rows takes."""

    B: int
    rows: int
    K: int
    chunk_rows: int
    workspace_bytes: int


# Thread blocks that sum chunks on CUDA: three for each multiprocessor of a large GPU,
# all resident at once; more where dz is written too.
_SUM_BLOCKS = {"bgrad": 396, "act_bgrad": 1056}


def _rows_together(channels: int, itemsize: int) -> int:
    """Rows that CUDA reads as one, by vectors of 16 bytes: each has sums of its own."""
    vector = 16 // itemsize
    return vector // math.gcd(channels, vector)


def bias_grad_chunk(
    rows: int, channels: int, itemsize: int, platform: str, op: str = "bgrad"
) -> int:
    """Rows that one partial sum of the bias gradient covers.

    Enough chunks to occupy every core or multiprocessor, few enough that adding
    their sums costs little; from the sizes alone, so that the order of summation
    is fixed. On CUDA a multiple of 8, the most rows that are read together, and no
    run of rows: the chunks take turns.
    """
    if platform == "cpu":
        return min(max(256, -(-rows // 64)), 4096)
    if rows <= 512:  # one launch instead of two
        return 512
    row_bytes = channels * itemsize * _rows_together(channels, itemsize)
    tiles = -(-row_bytes // 256)  # thread blocks for a chunk
    chunk = -(-rows // max(1, _SUM_BLOCKS[op] // tiles))
    return -(-chunk // 8) * 8


def bgrad_sizes(
    shape: Sequence[int],
    kept: tuple[int, ...],
    dtype: DTypeLike,
    platform: str,
    op: str = "bgrad",
) -> BgradSizes:
    """Of "bgrad" or "act_bgrad"."""
    outer = math.prod(shape[i] for i in kept[:-1])
    rows = math.prod(size for i, size in enumerate(shape) if i not in kept)
    channels = shape[kept[-1]]
    itemsize = np.dtype(dtype).itemsize
    chunk = bias_grad_chunk(rows, channels, itemsize, platform, op)
    together = _rows_together(channels, itemsize) if platform == "cuda" else 1
    partial_sums = outer * -(-rows // chunk) * together * channels
    workspace = planners.aligned(partial_sums, max(itemsize, 4))
    return BgradSizes(outer, rows, channels, chunk, workspace)


def _local_bgrad(platform: str, kept: tuple[int, ...], dy: jax.Array) -> jax.Array:
    summed = tuple(i for i in range(dy.ndim) if i not in kept)
    shape = tuple(dy.shape[i] for i in kept)
    if dy.size == 0:
        return jnp.zeros(shape, dy.dtype)  # as in `Plan.run`
    sizes = bgrad_sizes(dy.shape, kept, dy.dtype, platform)
    out, _ = native.ffi_call(
        names.of_channels("conv_bgrad", dy.shape[kept[-1]], dy.dtype),
        "jax_convbatch_bgrad",
        (
            jax.ShapeDtypeStruct(shape, dy.dtype),
            jax.ShapeDtypeStruct((sizes.workspace_bytes,), np.uint8),
        ),
        input_layouts=[(*kept[:-1], *summed, kept[-1])],
        output_layouts=[tuple(range(len(kept))), (0,)],
    )(dy, **{name: np.int64(getattr(sizes, name)) for name in BGRAD_ATTRIBUTES})
    return out


def _stock_bgrad(kept: tuple[int, ...], dy: jax.Array) -> jax.Array:
    summed = [i for i in range(dy.ndim) if i not in kept]
    return jnp.sum(jnp.transpose(dy, (*kept, *summed)), range(len(kept), dy.ndim))


def _bgrad_lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    dy: Any,
    *,
    kept: tuple[int, ...],
    out_sharding: Any,
) -> list[Any]:
    (aval,) = ctx.avals_in
    platform = platform or ctx.module_context.platforms[0]
    fun: Callable[..., Any]
    if native_reason(aval.dtype, platform):
        fun = partial(_stock_bgrad, kept)
    else:
        fun = partial(_local_bgrad, platform, kept)
        if _compat.partitions(ctx):
            fun = partition.partitioned_sums(fun, aval.ndim, kept, 1)
    out = _compat.lower_fun(fun, multiple_results=False)(ctx, dy)
    return _compat.with_sharding(ctx, out)


def _broadcast_lowering(
    ctx: _compat.LoweringRuleContext,
    bias: Any,
    *,
    shape: Sequence[int],
    kept: tuple[int, ...],
    out_sharding: Any,
) -> list[Any]:
    # broadcast_in_dim wants its dimensions sorted; vmap's come first in `kept`.
    order = sorted(range(len(kept)), key=kept.__getitem__)

    def fun(b: jax.Array) -> jax.Array:
        return jax.lax.broadcast_in_dim(b.transpose(order), shape, sorted(kept))

    out = _compat.lower_fun(fun, multiple_results=False)(ctx, bias)
    return _compat.with_sharding(ctx, out)


bgrad_p = _compat.primitive(
    "conv_bgrad", _bgrad_shape, lambda dy, **_: dy.dtype, result_sharding
)
broadcast_p = _compat.primitive(
    "conv_bias",
    lambda b, *, shape, **_: shape,
    lambda b, **_: b.dtype,
    result_sharding,
)
_compat.deflinear(bgrad_p, _bgrad_transpose)
_compat.deflinear(broadcast_p, _broadcast_transpose)
_compat.defbatching(bgrad_p, _bgrad_batching)
_compat.defbatching(broadcast_p, _broadcast_batching)
_compat.deflowering(bgrad_p, _bgrad_lowering)
_compat.defsilent(broadcast_p, _broadcast_lowering)
