# SPDX-License-Identifier: Apache-2.0
"""The layer as one primitive: activation(scale * conv(x, w) + bias + residual).

Its JVP runs the linear primitives, with what backward needs saved by the forward
call: y where the activation's derivative follows from it, otherwise the
pre-activation. So every mode and order of differentiation is there, and reverse
mode is dgrad, wgrad and one kernel for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._layers import act_grad, activations
from jax_convbatch._layers.epilogue import Epilogue, lowering, signs_shape, stock
from jax_convbatch._native import targets
from jax_convbatch._plans.params import OPS, ConvParams
from jax_convbatch._primitives import primitives
from jax_convbatch._primitives.bias import broadcast_bias
from jax_convbatch._select import plan
from jax_convbatch._shapes import folding


def layer(
    x: jax.Array,
    w: jax.Array,
    params: ConvParams,
    *,
    activation: str = "identity",
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
    out_dtype: DTypeLike | None = None,
    out_sharding: Any = None,
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


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    params: ConvParams,
    epilogue: Epilogue,
    **options: Any,
) -> tuple[Any, ...]:
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
    saved = out[1] if saves_input or both.save_signs else out[0]
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
        dy = act_grad.tangent(epilogue.activation, saved, dz, db, axis)
    if epilogue.save_signs:
        return out, [dy, _compat.zero_tangent(out[1])]
    return (out, [dy, dz]) if epilogue.save_input else (out[:1], [dy])


def _keeps_signs(
    x: jax.Array,
    params: ConvParams,
    epilogue: Epilogue,
    *,
    out_dtype: DTypeLike,
    out_sharding: Any,
) -> bool:
    """Whether backward is given bits instead of y: where a kernel writes them.

    An array with another axis of channels than y's is left out of meshes whose axes
    are explicit.
    """
    if epilogue.activation != "relu" or params.geometry.K % 8:
        return False
    if out_sharding is not None or _compat.has_explicit_axes(x) or out_dtype != x.dtype:
        return False
    platform = targets.default_platform()
    if platform not in plan.EPILOGUES:
        return False
    try:
        chosen = plan.plan_of(params, "fprop", x.dtype, out_dtype, platform)
    except ValueError:  # the engine asked for by name runs elsewhere
        return False
    return chosen.signs and plan.has_epilogue(chosen, platform, x.dtype, out_dtype)


def _parts(
    x: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
    params: ConvParams,
    epilogue: Epilogue,
    **options: Any,
) -> list[jax.Array]:
    """The layer as a convolution and what XLA makes of the rest, for Taylor mode."""
    c = primitives.bind("fprop", x, w, params, **options)
    return stock(epilogue, params.axis("y", "K"), c, *rest)


def _conv_tangents(
    x: jax.Array,
    w: jax.Array,
    scale: jax.Array | None,
    dx: jax.Array | None,
    dw: jax.Array | None,
    params: ConvParams,
    options: dict[str, Any],
) -> list[jax.Array]:
    """The tangents of scale * conv(x, w) that x's and w's tangents make.

    The scale goes into the filter, which is small, on either side.
    """

    def fprop(a: jax.Array, b: jax.Array) -> jax.Array:
        return primitives.bind("fprop", a, b, params, **options)

    def scaled(a: jax.Array) -> jax.Array:
        return a if scale is None else _like(a, scale, params.axis("w", "K")) * a

    terms = []
    if dx is not None:
        terms.append(fprop(dx, scaled(w)))
    if dw is not None:
        terms.append(fprop(x, scaled(dw)))
    return terms


def _like(a: jax.Array, per_channel: jax.Array, axis: int) -> jax.Array:
    """[K] repeated into the shape of `a`, by the primitive that bgrad transposes."""
    sharding = _compat.typeof(a).sharding
    per_channel = primitives.cast(per_channel, a.dtype)
    return broadcast_bias(per_channel, a.shape, axis, out_sharding=sharding)


# --- vmap -----------------------------------------------------------------------


def _batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    params: ConvParams,
    epilogue: Epilogue,
    out_dtype: DTypeLike,
    out_sharding: Any,
) -> tuple[Any, ...]:
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
    rest_of_it = partial(stock, epilogue, params.axis("y", "K"))
    in_axes = (at, *dims[2:])
    out = jax.vmap(rest_of_it, in_axes, 0, axis_size=axis_data.size)(c, *rest)
    return out, [0] * len(out)


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
            signs_shape(_shape(*arrays, params=params), params)
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
_compat.deflowering(layer_p, lowering)
