"""The layer as one primitive: activation(scale * conv(x, w) + bias + residual).

Its JVP runs the linear primitives, with what backward needs saved by the forward
call: y where the activation's derivative follows from it, otherwise the
pre-activation. So every mode and order of differentiation is there, and reverse
mode is dgrad, wgrad and one kernel for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch import (
    _compat,
    act_grad,
    activations,
    folding,
    partition,
    plan,
    primitives,
    targets,
)
from jax_convbatch import geometry as geo
from jax_convbatch.bias import broadcast_bias
from jax_convbatch.primitives import OPS, ConvParams


class Epilogue(NamedTuple):
    """What follows the convolution.

    Attributes:
      activation: a name of `activations.ACTIVATIONS`, or "identity".
      scale, bias, residual: whether there is such an operand.
      save_input: whether the pre-activation is a second result.
      save_signs: whether y's signs are, as `activations.signs_of` makes them.
      outside: the name of a function that the caller applies to y afterwards,
        for `explain`.
    """

    activation: str = "identity"
    scale: bool = False
    bias: bool = False
    residual: bool = False
    save_input: bool = False
    save_signs: bool = False
    outside: str = ""

    @property
    def results(self) -> int:
        return 1 + self.save_input + self.save_signs

    def named(self, rest) -> dict:
        """The operands after x and w by name; None where there is none."""
        present = iter(rest)
        names = ("scale", "bias", "residual")
        return {n: next(present) if getattr(self, n) else None for n in names}

    def describe(self) -> str:
        """Such as "scale, bias, residual, relu"."""
        parts = [n for n in ("scale", "bias", "residual") if getattr(self, n)]
        if self.activation != "identity":
            parts.append(self.activation)
        return ", ".join(parts)


def layer(
    x,
    w,
    params: ConvParams,
    *,
    activation: str = "identity",
    scale=None,
    bias=None,
    residual=None,
    out_dtype=None,
    out_sharding=None,
    outside: str = "",
) -> jax.Array:
    """activation(scale * conv(x, w) + bias + residual).

    Args:
      x, w: arrays of one floating dtype with the shapes that `params` gives.
      params: the convolution.
      activation: a name of `activations.ACTIVATIONS`, or "identity".
      scale, bias: [K] in the result's dtype, or None.
      residual: shape and dtype of the result, or None.
      out_dtype, out_sharding: as in `primitives.bind`.
      outside: as in `Epilogue`.
    """
    given = {"scale": scale, "bias": bias, "residual": residual}
    rest = [a for a in given.values() if a is not None]
    # Under shard_map the cotangent of a replicated operand is summed by the
    # transpose of this cast.
    arrays = _compat.auto_insert_reshard(x, w, *rest)
    there = {name: a is not None for name, a in given.items()}
    epilogue = Epilogue(activation, **there, outside=outside)
    return layer_p.bind(
        *arrays,
        params=params,
        epilogue=epilogue,
        out_dtype=np.dtype(out_dtype or x.dtype),
        out_sharding=_compat.canonicalize_sharding(out_sharding, "conv_bias_act"),
    )[0]


# --- differentiation ------------------------------------------------------------


def _jvp(primals, tangents, *, params, epilogue, **options):
    activation = activations.lookup(epilogue.activation)
    saves_input = activation is not None and not activation.saves_output
    x, w, *rest = primals
    both = epilogue._replace(
        save_input=epilogue.save_input or saves_input,
        save_signs=epilogue.save_signs or _keeps_signs(x, params, epilogue, **options),
    )
    out = layer_p.bind(*primals, params=params, epilogue=both, **options)
    named = epilogue.named(rest)
    dx, dw, *d_rest = (None if _compat.is_zero(t) else t for t in tangents)
    d_named = epilogue.named(d_rest)
    axis = params.axis("y", "K")
    terms = _conv_tangents(x, w, named["scale"], dx, dw, params, options)
    if d_named["scale"] is not None:
        c = primitives.bind("fprop", x, w, params, **options)
        terms.append(c * _like(c, d_named["scale"], axis))
    if d_named["residual"] is not None:
        terms.append(d_named["residual"])
    db = d_named["bias"]
    if not terms and db is None:
        zeros = [_compat.zero_tangent(a) for a in out]
        return out[: epilogue.results], zeros[: epilogue.results]
    if not terms:
        terms, db = [_like(out[0], db, axis)], None
    dz = sum(terms[1:], terms[0])
    if activation is None or epilogue.save_input:
        dz = dz if db is None else dz + _like(out[0], db, axis)
        db = None
    if activation is None:
        dy = dz
    else:
        saved = out[1] if saves_input or both.save_signs else out[0]
        dy = act_grad.tangent(epilogue.activation, saved, dz, db, axis)
    if epilogue.save_signs:
        return out, [dy, _compat.zero_tangent(out[1])]
    return (out, [dy, dz]) if epilogue.save_input else (out[:1], [dy])


def _keeps_signs(x, params, epilogue, *, out_dtype, out_sharding) -> bool:
    """Whether backward is given bits instead of y: where a kernel writes them.

    An array with another axis of channels than y's is left out of meshes whose axes
    are explicit.
    """
    if epilogue.activation != "relu" or params.geometry.K % 8:
        return False
    if out_sharding is not None or _compat.has_explicit_axes(x):
        return False
    platform = targets.default_platform()
    if platform not in plan.EPILOGUES:
        return False
    try:
        chosen = params.plan("fprop", x.dtype, out_dtype, platform)
    except ValueError:  # the engine asked for by name runs elsewhere
        return False
    return chosen.signs and plan.has_epilogue(chosen, platform, x.dtype, out_dtype)


def _parts(x, w, *rest, params, epilogue, **options):
    """The layer as a convolution and what XLA makes of the rest, for Taylor mode."""
    c = primitives.bind("fprop", x, w, params, **options)
    return _stock_epilogue(epilogue, params.axis("y", "K"), c, *rest)


def _conv_tangents(x, w, scale, dx, dw, params, options):
    """The tangents of scale * conv(x, w) that x's and w's tangents make.

    The scale goes into the filter, which is small, on either side.
    """

    def fprop(a, b):
        return primitives.bind("fprop", a, b, params, **options)

    def scaled(a):
        return a if scale is None else _like(a, scale, params.axis("w", "K")) * a

    terms = []
    if dx is not None:
        terms.append(fprop(dx, scaled(w)))
    if dw is not None:
        terms.append(fprop(x, scaled(dw)))
    return terms


def _like(a, per_channel, axis: int):
    """[K] repeated into the shape of `a`, by the primitive that bgrad transposes."""
    sharding = _compat.typeof(a).sharding
    per_channel = primitives.cast(per_channel, a.dtype)
    return broadcast_bias(per_channel, a.shape, axis, out_sharding=sharding)


# --- vmap -----------------------------------------------------------------------


def _batching(axis_data, args, dims, *, params, epilogue, out_dtype, out_sharding):
    x, w, *rest = args
    residual = epilogue.named(rest)["residual"]
    dim = epilogue.named(dims[2:])
    n = params.axis("x", "N"), params.axis("y", "N")
    only_samples = dims[0] is not None and dims[1] is None
    only_samples &= dim["scale"] is None and dim["bias"] is None
    if only_samples and out_sharding is None and axis_data.size > 0:
        size = axis_data.size
        x = folding.fold_axis(x, dims[0], n[0], 1)
        if residual is not None:
            if dim["residual"] is None:
                residual = jnp.broadcast_to(residual, (size, *residual.shape))
            at = dim["residual"] or 0
            rest = [*rest[:-1], folding.fold_axis(residual, at, n[1], 1)]
        out = layer_p.bind(
            x,
            w,
            *rest,
            params=params.with_sizes(N=params.geometry.N * size),
            epilogue=epilogue,
            out_dtype=out_dtype,
            out_sharding=None,
        )
        return [folding.unfold(a, n[1], size, 1) for a in out], [n[1]] * len(out)
    c, at = primitives.batch(
        "fprop",
        axis_data,
        (x, w),
        dims[:2],
        params=params,
        out_dtype=out_dtype,
        out_sharding=out_sharding,
    )
    stock = partial(_stock_epilogue, epilogue, params.axis("y", "K"))
    in_axes = (at, *dims[2:])
    out = jax.vmap(stock, in_axes, 0, axis_size=axis_data.size)(c, *rest)
    return out, [0] * len(out)


# --- lowering -------------------------------------------------------------------


def _stock_epilogue(epilogue, axis: int, c, *rest) -> list:
    """[y], or [y, z], from c = conv(x, w), by XLA."""
    named = epilogue.named(rest)

    def per_channel(a):
        return jax.lax.broadcast_in_dim(a, c.shape, (axis,))

    z = c
    if epilogue.scale:
        z = z * per_channel(named["scale"])
    if epilogue.bias:
        z = z + per_channel(named["bias"])
    if epilogue.residual:
        z = z + named["residual"]
    activation = activations.lookup(epilogue.activation)
    y = activation.fn(z) if activation else z
    signs = [activations.signs_of(y, axis)] if epilogue.save_signs else []
    return [y, z, *signs] if epilogue.save_input else [y, *signs]


def _signs_shape(shape, params) -> tuple[int, ...]:
    """Of y's signs, given y's."""
    axis = params.axis("y", "K")
    return tuple(n // 8 if i == axis else n for i, n in enumerate(shape))


def _attributes(epilogue) -> dict:
    flags = ("scale", "bias", "residual", "save_input")
    attributes = {name: np.int64(getattr(epilogue, name)) for name in flags}
    return {"activation": epilogue.activation, **attributes}


def _epilogue_call(epilogue, params, c, *rest) -> list:
    """One pass over c by a kernel of ours, in place where c is not needed."""
    g = params.geometry
    layout = geo.layout("y", params.dimension_numbers)
    arrays = [c, *rest]
    layouts = [(0,) if a.ndim == 1 else layout for a in arrays]
    count = 1 + epilogue.save_input
    call = jax.ffi.ffi_call(
        "jax_convbatch_epilogue",
        [jax.ShapeDtypeStruct(c.shape, c.dtype)] * count,
        input_layouts=layouts,
        output_layouts=[layout] * count,
        input_output_aliases={0: count - 1},
    )
    sizes = dict(rows=np.int64(g.N * g.output_pixels), K=np.int64(g.K))
    return list(call(*arrays, **sizes, **_attributes(epilogue)))


def _local_layer(platform: str, epilogue, out_dtype, params, arrays, add=None):
    """What one device does with its part of the operands.

    `add` sums parts of conv(x, w) over devices, where there are any.
    """
    x, w, *rest = arrays
    fprop = OPS["fprop"]
    local = params.with_sizes(**primitives.local_sizes(fprop, params, x, w))
    shape = local.shape("y")
    if 0 in (x.size, w.size, math.prod(shape)):
        zeros = jnp.zeros(shape, out_dtype)
        return _stock_epilogue(epilogue, params.axis("y", "K"), zeros, *rest)
    chosen = local.plan("fprop", x.dtype, out_dtype, platform)
    empty = not epilogue.describe()
    fuses = plan.has_epilogue(chosen, platform, x.dtype, out_dtype) and add is None
    if epilogue.save_signs and not (fuses and chosen.signs):
        plain = epilogue._replace(save_signs=False)
        out = _local_layer(platform, plain, out_dtype, params, arrays, add)
        return [*out, activations.signs_of(out[0], params.axis("y", "K"))]
    if fuses and not empty:
        return _fused_call(platform, chosen, epilogue, local, x, w, rest, out_dtype)
    c = primitives.native_call(fprop, chosen, x, w, local, out_dtype)
    c = add(c) if add else c
    return [c] if empty else _epilogue_call(epilogue, local, c, *rest)


def _fused_call(platform, chosen, epilogue, params, x, w, rest, out_dtype) -> list:
    layouts = {role: geo.layout(role, params.dimension_numbers) for role in "xwy"}
    y = jax.ShapeDtypeStruct(params.shape("y"), out_dtype)
    more = [y] if epilogue.save_input else []
    attributes = _attributes(epilogue)
    if platform == "cuda":
        attributes["save_signs"] = np.int64(epilogue.save_signs)
    if epilogue.save_signs:
        shape = _signs_shape(y.shape, params)
        more.append(jax.ShapeDtypeStruct(shape, np.uint8))
    per_channel = [(0,)] * (epilogue.scale + epilogue.bias)
    out, _, *saved = jax.ffi.ffi_call(
        f"jax_convbatch_{chosen.engine}_fprop_act",
        [y, jax.ShapeDtypeStruct((chosen.workspace_bytes,), np.uint8), *more],
        input_layouts=[
            layouts["x"],
            layouts["w"],
            *per_channel,
            *[layouts["y"]] * epilogue.residual,
        ],
        output_layouts=[layouts["y"], (0,), *[layouts["y"]] * len(more)],
    )(
        x,
        w,
        *rest,
        **primitives.attributes(chosen, params),
        **attributes,
    )
    return [out, *saved]


def _xla_layer(epilogue, out_dtype, params, x, w, *rest):
    c = primitives.xla_call("fprop", x, w, params, out_dtype)
    return _stock_epilogue(epilogue, params.axis("y", "K"), c, *rest)


def _lowering(platform, ctx, *arrays, params, epilogue, out_dtype, out_sharding):
    platform = platform or ctx.module_context.platforms[0]
    # For its errors, as in primitives.py.
    chosen = params.plan("fprop", ctx.avals_in[0].dtype, out_dtype, platform)
    fun: Callable[..., list]
    if chosen.engine == "xla":
        fun = partial(_xla_layer, epilogue, out_dtype, params)
    else:
        local = partial(_local_layer, platform, epilogue, out_dtype)
        if _compat.devices_known(ctx):
            fun = partition.partitioned_layer(local, OPS["fprop"], params, epilogue)
        else:
            fun = lambda *arrays: local(params, arrays)  # noqa: E731
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- definition -----------------------------------------------------------------

_fprop = OPS["fprop"]
_rules = (
    lambda x, w, *_, params, **__: primitives.shape_rule(_fprop, x, w, params=params),
    lambda x, w, *_, out_dtype, **__: primitives.dtype_rule(
        _fprop, x, w, out_dtype=out_dtype
    ),
    lambda x, w, *_, params, out_sharding, **__: primitives.sharding_rule(
        _fprop, x, w, params=params, out_sharding=out_sharding
    ),
)
_shape, _dtype, _sharding = _rules
layer_p = _compat.multi_primitive(
    "conv_layer",
    _rules,
    (
        lambda *arrays, params, epilogue, **options: (
            _signs_shape(_shape(*arrays, params=params), params)
            if epilogue.save_signs
            else _shape(*arrays, params=params)
        ),
        lambda *arrays, epilogue, **options: (
            np.dtype(np.uint8) if epilogue.save_signs else _dtype(*arrays, **options)
        ),
        _sharding,
    ),
    count=lambda options: options["epilogue"].results,
)
_compat.defjvp(layer_p, _jvp)
_compat.defjet(layer_p, _parts)
_compat.defbatching(layer_p, _batching)
for _platform in ("cpu", "cuda"):
    _compat.mlir.register_lowering(
        layer_p, partial(_lowering, _platform), platform=_platform
    )
_compat.mlir.register_lowering(layer_p, partial(_lowering, None))
