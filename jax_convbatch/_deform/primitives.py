# SPDX-License-Identifier: Apache-2.0
"""The primitives of deformable convolution.

    fprop      y from x, corners, w            linear in each of the three
    tangent    the same with one of them replaced by its tangent, summed
    backward   those wanted of dx, dcorners, dw from dy

`corners` are the weights of the sampled pixels (sampling.py), `cells` their
positions, integers without a derivative. JVPs of all three are sums of the same
primitives, and so are their transposes: every mode and order is there. tangent is
one primitive so that its transpose is one backward pass, whose product dy w^T
serves x and corners alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._deform import lowering as deform_lowering
from jax_convbatch._deform.lowering import total
from jax_convbatch._deform.params import FACTORS, DeformParams, needed
from jax_convbatch._shapes import folding


def fprop(
    x: jax.Array,
    corners: jax.Array,
    w: jax.Array,
    cells: jax.Array,
    params: DeformParams,
) -> jax.Array:
    """y, in the dtype of x.

    Args:
      x, w: of one floating dtype, with the shapes that `params` gives.
      corners, cells: as `sampling.sampling` gives them.
      params: the convolution.
    """
    arrays = _compat.auto_insert_reshard(x, corners, w, cells)
    return fprop_p.bind(*arrays, params=params)


def _backward(
    arrays: dict[str, Any],
    cells: jax.Array,
    dy: jax.Array,
    wanted: tuple[str, ...],
    params: DeformParams,
) -> dict[str, Any]:
    wanted = tuple(f for f in FACTORS if f in wanted)
    operands = [arrays[f] for f in needed(wanted)]
    out = backward_p.bind(*operands, cells, dy, wanted=wanted, params=params)
    return dict(zip(wanted, out, strict=True))


def _fprop(arrays: dict[str, Any], cells: jax.Array, params: DeformParams) -> jax.Array:
    return fprop_p.bind(*(arrays[f] for f in FACTORS), cells, params=params)


# --- differentiation ----------------------------------------------------------


def _present(names: Any, tangents: Sequence[Any]) -> dict[str, Any]:
    found = zip(names, tangents, strict=False)
    return {name: t for name, t in found if not _compat.is_zero(t)}


def _fprop_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, params: DeformParams
) -> Any:
    y = fprop_p.bind(*primals, params=params)
    dots = _present(FACTORS, tangents)
    if not dots:
        return y, _compat.zero_tangent(y)
    return y, tangent_p.bind(*primals, *dots.values(), of=tuple(dots), params=params)


def _fprop_transpose(ct: Any, *operands: Any, params: DeformParams) -> list[Any]:
    """For one of the three factors, in which alone the primitive is linear."""
    arrays = dict(zip(FACTORS, operands[:3], strict=True))
    (wanted,) = (f for f, a in arrays.items() if _compat.is_linear_input(a))
    if _compat.is_zero(ct):
        return [_compat.zero_cotangent(a) for a in operands]
    out = _backward(arrays, operands[3], ct, (wanted,), params)
    return [*(out.get(f) for f in FACTORS), None]


def _tangent_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    of: tuple[str, ...],
    params: DeformParams,
) -> tuple[jax.Array, jax.Array]:
    y = tangent_p.bind(*primals, of=of, params=params)
    factors, cells = dict(zip(FACTORS, primals[:3], strict=True)), primals[3]
    dots = dict(zip(of, primals[4:], strict=True))
    terms = []
    second = _present(of, tangents[4:])
    if second:
        out = tangent_p.bind(
            *primals[:4], *second.values(), of=tuple(second), params=params
        )
        terms.append(out)
    for name, tangent in _present(FACTORS, tangents[:3]).items():
        for other, dot in dots.items():
            if other != name:
                terms.append(
                    _fprop({**factors, name: tangent, other: dot}, cells, params)
                )
    return y, total(terms) if terms else _compat.zero_tangent(y)


def _tangent_transpose(
    ct: Any, *operands: Any, of: tuple[str, ...], params: DeformParams
) -> list[Any]:
    dots = operands[4:]
    pairs = zip(of, dots, strict=True)
    wanted = tuple(f for f, a in pairs if _compat.is_linear_input(a))
    if _compat.is_zero(ct):
        return [_compat.zero_cotangent(a) for a in operands]
    factors = dict(zip(FACTORS, operands[:3], strict=True))
    out = _backward(factors, operands[3], ct, wanted, params)
    return [*[None] * 4, *(out.get(f) for f in of)]


def _backward_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    wanted: tuple[str, ...],
    params: DeformParams,
) -> tuple[Any, ...]:
    out = backward_p.bind(*primals, wanted=wanted, params=params)
    names = needed(wanted)
    *values, cells, dy = primals
    arrays = dict(zip(names, values, strict=True))
    terms: dict[str, list[Any]] = {result: [] for result in wanted}

    def add(arrays: Any, dy: jax.Array, results: Any) -> None:
        for name, term in _backward(arrays, cells, dy, results, params).items():
            terms[name].append(term)

    if not _compat.is_zero(tangents[-1]):
        add(arrays, tangents[-1], wanted)
    for name, tangent in _present(names, tangents[: len(names)]).items():
        results = tuple(r for r in wanted if r != name)
        add({**arrays, name: tangent}, dy, results)
    return out, [
        total(terms[r]) if terms[r] else _compat.zero_tangent(o)
        for r, o in zip(wanted, out, strict=True)
    ]


def _backward_transpose(
    cts: Sequence[Any], *operands: Any, wanted: tuple[str, ...], params: DeformParams
) -> list[Any]:
    """For dy or for one factor, whichever the operand is that is linear."""
    names = needed(wanted)
    *values, cells, dy = operands
    arrays = dict(zip(names, values, strict=True))
    given = _present(wanted, cts)
    linear = [f for f, a in arrays.items() if _compat.is_linear_input(a)]
    if not given:
        return [_compat.zero_cotangent(a) for a in operands]
    if not linear:
        terms = [_fprop({**arrays, f: ct}, cells, params) for f, ct in given.items()]
        return [*[None] * len(names), None, total(terms)]
    (name,) = linear
    terms = [
        _backward({**arrays, f: ct}, cells, dy, (name,), params)[name]
        for f, ct in given.items()
    ]
    return [*(total(terms) if f == name else None for f in names), None, None]


# --- vmap ---------------------------------------------------------------------


def batch(
    bind: Callable[..., Any],
    operand_roles: tuple[str, ...],
    result_roles: tuple[str, ...],
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    params: DeformParams,
) -> tuple[Any, ...]:
    """Mapped samples go into N; where w is mapped, everything into the groups."""
    size = axis_data.size
    dim_of = list(zip(operand_roles, dims, strict=True))
    by_group = "w" in result_roles or any(r == "w" and d is not None for r, d in dim_of)
    g = params.geometry
    axis_of: Callable[[str], int | None]
    if by_group:
        axis_of = params.channel_axis
        new = params.with_sizes(
            params.offset_groups * size,
            C=g.C * size,
            K=g.K * size,
            groups=g.groups * size,
        )
    else:
        axis_of = params.batch_axis
        new = params.with_sizes(N=g.N * size)

    def fold(role: str, a: jax.Array, d: int | None) -> jax.Array:
        axis = axis_of(role)
        if axis is None:  # w, the same for all samples
            return a
        if d is None:
            a, d = jnp.broadcast_to(a, (size, *a.shape)), 0
        return folding.fold_axis(a, d, axis, 1)

    if size == 0:
        named = zip(operand_roles, args, strict=True)
        dtype = next(a.dtype for role, a in named if role in ("x", "w", "y"))
        out = [
            jnp.zeros((0, *params.shape(r)), params.dtype(r, dtype))
            for r in result_roles
        ]
        return out, [0] * len(out)
    folded = [fold(r, a, d) for (r, d), a in zip(dim_of, args, strict=True)]
    out = bind(*folded, params=new)
    out = out if isinstance(out, list) else [out]
    axes: list[Any] = [axis_of(r) for r in result_roles]
    return [
        folding.unfold(a, axis, size, 1) for a, axis in zip(out, axes, strict=True)
    ], axes


def _fprop_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    params: DeformParams,
) -> tuple[Any, Any]:
    out, axes = batch(
        fprop_p.bind, (*FACTORS, "cells"), ("y",), axis_data, args, dims, params
    )
    return out[0], axes[0]


def _tangent_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    of: tuple[str, ...],
    params: DeformParams,
) -> tuple[Any, Any]:
    roles = (*FACTORS, "cells", *of)
    bind = partial(tangent_p.bind, of=of)
    out, axes = batch(bind, roles, ("y",), axis_data, args, dims, params)
    return out[0], axes[0]


def _backward_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    wanted: tuple[str, ...],
    params: DeformParams,
) -> tuple[Any, ...]:
    roles = (*needed(wanted), "cells", "y")
    bind = partial(backward_p.bind, wanted=wanted)
    return batch(bind, roles, wanted, axis_data, args, dims, params)


# --- definition ---------------------------------------------------------------


def _check(
    roles: tuple[str, ...], avals: Any, dtype: DTypeLike, params: DeformParams
) -> None:
    for role, aval in zip(roles, avals, strict=True):
        want = params.shape(role), params.dtype(role, dtype)
        if (aval.shape, np.dtype(aval.dtype)) != want:
            raise ValueError(f"deform: {role} is {aval}, where {want} is expected")


def result_sharding(params: DeformParams, role: str, cells: Any) -> NamedSharding:
    """Samples as the cells, or offsets, have them; nothing else is sharded."""
    spec: list[Any] = [None] * len(params.shape(role))
    if (axis := params.batch_axis(role)) is not None:
        spec[axis] = cells.sharding.spec[0]
    return NamedSharding(cells.sharding.mesh, PartitionSpec(*spec))


def _y_shape(
    x: Any,
    corners: Any,
    w: Any,
    cells: Any,
    *dots: Any,
    params: DeformParams,
    of: tuple[str, ...] = (),
) -> tuple[int, ...]:
    roles = (*FACTORS, "cells", *of)
    _check(roles, (x, corners, w, cells, *dots), x.dtype, params)
    return params.shape("y")


def _y_rules() -> tuple[Any, ...]:
    return (
        _y_shape,
        lambda x, *_, **__: x.dtype,
        lambda x, corners, w, cells, *_, params, **__: result_sharding(
            params, "y", cells
        ),
    )


def _backward_rules(i: int) -> tuple[Any, ...]:
    def shape(
        *avals: Any, wanted: tuple[str, ...], params: DeformParams
    ) -> tuple[int, ...]:
        _check((*needed(wanted), "cells", "y"), avals, avals[-1].dtype, params)
        return params.shape(wanted[i])

    def dtype(*avals: Any, wanted: tuple[str, ...], params: DeformParams) -> DTypeLike:
        return params.dtype(wanted[i], avals[-1].dtype)

    def sharding(
        *avals: Any, wanted: tuple[str, ...], params: DeformParams
    ) -> NamedSharding:
        return result_sharding(params, wanted[i], avals[-2])

    return shape, dtype, sharding


fprop_p = _compat.primitive("deform_fprop", *_y_rules())
tangent_p = _compat.primitive("deform_tangent", *_y_rules())
backward_p = _compat.multi_primitive(
    "deform_backward",
    *map(_backward_rules, range(3)),
    count=lambda options: len(options["wanted"]),
)
_compat.defjvp(fprop_p, _fprop_jvp, _fprop_transpose)
_compat.defjvp(tangent_p, _tangent_jvp, _tangent_transpose)
_compat.defjvp(backward_p, _backward_jvp, _backward_transpose)
PRIMITIVES = (fprop_p, tangent_p, backward_p)
for _primitive, _rule, _lowering in (
    (fprop_p, _fprop_batching, deform_lowering.fprop),
    (tangent_p, _tangent_batching, deform_lowering.tangent),
    (backward_p, _backward_batching, deform_lowering.backward),
):
    _compat.defbatching(_primitive, _rule)
    _compat.deflowering(_primitive, _lowering)
