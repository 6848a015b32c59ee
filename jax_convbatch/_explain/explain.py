# SPDX-License-Identifier: Apache-2.0
"""explain: which engine runs each convolution of a function, and why."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from jax_convbatch import _compat
from jax_convbatch._deform import forward as deform_forward
from jax_convbatch._deform import lowering as deform_lowering
from jax_convbatch._deform import primitives as deform_primitives
from jax_convbatch._explain import causal
from jax_convbatch._explain.table import Explanation, Row
from jax_convbatch._layers import (
    act_grad,
    fused,
    norm_act,
    norm_act_grad,
    norm_act_parts,
)
from jax_convbatch._layers.epilogue import layer_plan
from jax_convbatch._native import hopper, targets
from jax_convbatch._plans.kinds import Plan
from jax_convbatch._primitives import bias, primitives
from jax_convbatch._select import implicit_cuda, plan
from jax_convbatch._shapes import geometry as geo

# Primitives that have one row each, and their operations.
CONVOLUTIONS = {
    _compat.lax_conv_p: "fprop",
    bias.bgrad_p: "bgrad",
    act_grad.cotangent_p: "act_bgrad",
    fused.layer_p: "fprop",
    **{primitive: name for name, primitive in primitives.PRIMITIVES.items()},
}


def explain(
    fn: Callable[..., Any], *args: Any, platform: str | None = None, **kwargs: Any
) -> Explanation:
    """Lists every convolution that `fn(*args, **kwargs)` would run.

    The function is traced, not run. To see gradients, pass a function that computes
    them: `explain(jax.grad(loss), params, batch)`. Sizes are those of the whole batch;
    under a mesh, each device runs its own part of it.

    Args:
      fn: a function of arrays that can be traced.
      *args, **kwargs: arrays or `jax.ShapeDtypeStruct`s, or trees of them. Anything
        else is passed on unchanged, as in `explain(conv, x, w, strides=2)`.
      platform: "cpu", "cuda" or "gpu", ...; by default where JAX would run `fn`. What
        runs on "cuda" depends on the GPU; without one, the reasons say that another
        engine may run, and without the CUDA module all rows are of `jax.lax`.

    Returns:
      A tuple of `Row` in order of execution, which prints as a table, in notebooks too.
      It has the sum of their `flops`, and `to_dict()` for JSON. A convolution in the
      body of a loop or a scan appears once. If a row has an engine other than "xla",
      `jax.export` needs `export_checks`.

    Raises:
      ValueError: an engine that is named with `algorithm=` cannot run there.
      TypeError: `fn` is not a function.
    """
    if platform is None:
        platform = targets.default_platform()
    platform = targets.name_of(platform)
    equations = traced(fn, *args, **kwargs)
    rows = [row for eqn in equations for row in rows_of(eqn, platform)]
    if (
        platform == "cuda"
        and targets.available("cuda")
        and not implicit_cuda.sees_gpu()
    ):
        rows = [_without_gpu(row) for row in rows]
    return Explanation(rows)


def _without_gpu(row: Row) -> Row:
    """What the rule chose where the choice depends on a GPU that is not there."""
    if row.source != "rule" or row.engine in ("kernel", "xla"):
        return row
    caveat = "planned without a GPU (with one, another engine may run)"
    return replace(row, reason=f"{caveat}; {row.reason}")


def traced(fn: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Every equation of `fn(*args, **kwargs)` that is not dead, inner ones too."""
    if not callable(fn):
        raise TypeError(
            "the first argument must be a function and its arguments follow: (fn, x), "
            f"not (fn(x)); got {type(fn).__name__}"
        )
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {i: a for i, a in enumerate(leaves) if _is_array(a)}

    def of_arrays(arrays: Any) -> Any:
        of_leaves = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(tree, of_leaves)
        out = fn(*args, **kwargs)
        # Modules and optimizers of Flax's nnx are changed in place.
        return out, [a for a in jax.tree.leaves((args, kwargs)) if _is_array(a)]

    jaxpr = jax.make_jaxpr(of_arrays)(arrays).jaxpr
    # What nobody reads XLA drops: the first layer's dgrad, most often.
    jaxpr, _ = _compat.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return _equations(jaxpr)


def _is_array(a: object) -> bool:
    return hasattr(a, "shape") and hasattr(a, "dtype")


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _jaxprs(list(eqn.params.values())):
            yield from _equations(inner)


def _jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, jex.Jaxpr):
        yield value
    elif isinstance(value, jex.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _jaxprs(item)


# Primitives that are one kernel or a composition: the operation whose plan says which
# ("": always the composition), and the composition.
_EITHER: dict[Any, tuple[str, Callable[..., Any]]] = {
    norm_act.norm_act_p: ("fprop", norm_act_parts.composed),
    norm_act_grad.cotangent_p: ("dgrad", norm_act_grad.composed_cotangent),
    norm_act_grad.tangent_p: ("", norm_act_grad.composed_tangent),
}


def opened(eqn: Any, platform: str) -> Iterator[Any]:
    """What runs in an equation's place: itself, or the equations it is composed of."""
    if eqn.primitive not in _EITHER:
        yield eqn
        return
    op, composed = _EITHER[eqn.primitive]
    static = eqn.params["static"]
    # Without what a shard_map knows of them, as it is traced outside.
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    if op and norm_act_parts.plan(static, operands[0].dtype, platform, op):
        yield eqn
        return
    for inner in traced(partial(composed, static=static), *operands):
        yield from opened(inner, platform)


def rows_of(eqn: Any, platform: str) -> list[Row]:
    rows = (_rows_of_opened(one, platform) for one in opened(eqn, platform))
    return list(itertools.chain.from_iterable(rows))


def _rows_of_opened(eqn: Any, platform: str) -> list[Row]:
    if eqn.primitive in (*deform_primitives.PRIMITIVES, deform_forward.forward_p):
        return _deform_rows(eqn, platform)
    if causal.is_causal(eqn):
        return [causal.row_of(eqn, platform)]
    if eqn.primitive in _EITHER:
        return _norm_act_rows(eqn, platform)
    row = _row(eqn, platform)
    return [row] if row else []


def _deform_rows(eqn: Any, platform: str) -> list[Row]:
    """A row for each native call that the primitive is, or would be."""
    params, wanted = eqn.params["params"], eqn.params.get("wanted", ())
    # x of fprop, dy of backward.
    dtype = eqn.invars[-1 if wanted else 0].aval.dtype
    ops = [("fprop", ("y",))] * len(eqn.params.get("of", "y"))
    g = params.geometry
    geometry = g.describe(params.conv.dimension_numbers)
    if params.offset_groups > 1:
        geometry += f", offset groups {params.offset_groups}"
    rows = []
    for op, results in deform_lowering.native_ops(wanted) if wanted else ops:
        chosen = params.plan(op, results, dtype, platform)
        rows.append(
            Row(
                f"deform_{op}",
                geometry,
                np.dtype(dtype).name,
                chosen.engine,
                chosen.reason,
                chosen.slice,
                chosen.workspace_bytes,
                chosen.source,
                2 * g.N * g.output_pixels * g.w_size,
            )
        )
    return rows


def _norm_act_rows(eqn: Any, platform: str) -> list[Row]:
    """fprop's, or dgrad's and wgrad's."""
    op, _ = _EITHER[eqn.primitive]
    static, dtype = eqn.params["static"], eqn.invars[0].aval.dtype
    found = norm_act_parts.plan(static, dtype, platform, op)
    assert found is not None  # or it would have been opened
    also = static.describe()
    if op == "dgrad":
        also = f"derivative of {static.activation}, sums for scale and shift"
    params, name = static.params, np.dtype(dtype).name
    row = Row(
        op,
        params.geometry.describe(params.dimension_numbers),
        name,
        "implicit_gemm",
        f"halo tiles of {found['tile_n']} channels; {also} in the same kernel",
        0,
        found["workspace"],
        "rule",
        params.geometry.flops,
    )
    if op == "fprop":
        return [row]
    options = {"params": params, "out_dtype": dtype}
    return [row, _conv_row("wgrad", options, name, platform)[0]]


def _row(eqn: Any, platform: str) -> Row | None:
    if eqn.primitive not in CONVOLUTIONS:  # whose operands may be random keys
        return None
    name = CONVOLUTIONS[eqn.primitive]
    operands = [v.aval for v in eqn.invars]
    dtype = np.dtype(operands[0].dtype).name
    if eqn.primitive is _compat.lax_conv_p:
        return _stock_row(eqn, operands, dtype)
    if eqn.primitive is bias.bgrad_p:
        return _bgrad_row(name, eqn, operands[0], dtype, platform)
    if eqn.primitive is act_grad.cotangent_p:
        return _bgrad_row(name, eqn, operands[1], dtype, platform)
    if eqn.primitive is fused.layer_p:
        return _layer_row(eqn, dtype, platform)
    return _conv_row(name, eqn.params, dtype, platform)[0]


def _conv_row(name: str, options: Any, dtype: str, platform: str) -> tuple[Row, Plan]:
    params = options["params"]
    chosen = plan.plan_of(params, name, dtype, options["out_dtype"], platform)
    row = Row(
        name,
        params.geometry.describe(params.dimension_numbers),
        dtype,
        chosen.engine,
        chosen.reason,
        chosen.slice,
        chosen.workspace_bytes,
        chosen.source,
        params.geometry.flops,
    )
    return row, chosen


def _layer_row(eqn: Any, dtype: str, platform: str) -> Row:
    """fprop's row, and where what follows it is computed."""
    row, chosen = _conv_row("fprop", eqn.params, dtype, platform)
    epilogue = eqn.params["epilogue"]
    reason, size = row.reason, row.workspace_bytes
    if epilogue.describe():
        place = "in one pass over y"
        one_call = None
        if row.engine == "xla":
            place = "by XLA"
        else:
            params, out_dtype = eqn.params["params"], eqn.params["out_dtype"]
            one_call = layer_plan(chosen, epilogue, params, dtype, out_dtype, platform)
        if one_call:
            place, size = "in the same kernel", one_call.workspace_bytes
            if one_call is not chosen:  # another kernel than without them
                reason = one_call.reason
            elif (platform, one_call.engine) == ("cuda", "implicit_gemm"):
                # A tile that has this epilogue, where its own has not.
                geometry = eqn.params["params"].geometry
                tile = hopper.layer_config(
                    *(geometry, dtype, one_call.config),
                    *(epilogue.is_plain, epilogue.save_signs),
                )
                reason = reason.replace(one_call.config, tile, 1)
        reason += f"; {epilogue.describe()} {place}"
    if epilogue.outside:
        reason += f"; {epilogue.outside} is a Python function, outside the kernel"
    return replace(row, reason=reason, workspace_bytes=size)


def _stock_row(eqn: Any, operands: Any, dtype: str) -> Row:
    numbers = eqn.params["dimension_numbers"]
    out = eqn.outvars[0].aval
    rank = len(numbers.lhs_spec) - 2
    shapes = (operands[0].shape, operands[1].shape, out.shape)
    sizes = ["x".join(map(str, shape)) for shape in shapes]
    reason = plan.unsupported(operands[0].dtype, out.dtype, rank)
    known = all(map(_compat.is_constant_shape, shapes))
    if not reason and not known:
        reason = "symbolic sizes"
    described, flops = f"{sizes[0]} * {sizes[1]} -> {sizes[2]}", 0
    if known and rank <= geo.MAX_SPATIAL:
        geometry = _stock_geometry(shapes, eqn.params)
        batch_groups = eqn.params["batch_group_count"]
        # Each group of the batch has output channels of its own.
        flops = geometry._replace(N=geometry.N // batch_groups).flops
        if batch_groups == 1:
            described = geometry.describe(numbers)
        else:
            described += f", batch groups {batch_groups}"
    return Row(
        "fprop",
        described,
        dtype,
        "xla",
        reason or "algorithm='xla', or jax.lax was called",
        0,
        0,
        "rule" if reason else "name",
        flops,
    )


def _stock_geometry(shapes: Any, params: dict[str, Any]) -> geo.ConvGeometry:
    names = (
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation"),
        *("dimension_numbers", "feature_group_count"),
    )
    return geo.from_lax(*shapes, **{name: params[name] for name in names})


def _bgrad_row(op: str, eqn: Any, dy: Any, dtype: str, platform: str) -> Row:
    kept = eqn.params["kept"]
    reason = bias.native_reason(dy.dtype, platform)
    on = "cpu" if reason else platform
    sizes = bias.bgrad_sizes(dy.shape, kept, dy.dtype, on, op)
    activation = eqn.params.get("activation")
    sums = eqn.params.get("bias", True)
    kernel = [f"derivative of {activation}"] if activation else []
    kernel += ["sum in fixed chunks"] if sums else []
    return Row(
        op,
        f"{sizes.rows}x{sizes.K}"
        + (f" -> {sizes.K}" if sums else "")
        + (f", {sizes.B} times" if len(kept) > 1 else ""),
        dtype,
        "xla" if reason else "kernel",
        reason or ", ".join(kernel),
        0,
        sizes.workspace_bytes if sums and not reason else 0,
        "rule",
    )
