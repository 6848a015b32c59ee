# SPDX-License-Identifier: Apache-2.0
"""What follows a convolution, and how it is computed: in the convolution's kernel,
in one pass over its result, or by XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._layers import activations
from jax_convbatch._native import names, native
from jax_convbatch._plans.kinds import OneCall, Plan, attributes, xla_call
from jax_convbatch._plans.params import OPS, ConvParams
from jax_convbatch._plans.planners import Problem
from jax_convbatch._primitives import primitives
from jax_convbatch._select import plan
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._sharding import partition_layer


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

    @property
    def is_plain(self) -> bool:
        """Whether a bias, and relu or nothing, is all that follows."""
        more = self.scale or self.residual or self.save_input
        return not more and self.activation in ("relu", "identity")

    def named(self, rest: Sequence[Any]) -> dict[str, Any]:
        """The operands after x and w by name; None where there is none."""
        present = iter(rest)
        names = ("scale", "bias", "residual")
        return {n: next(present) if getattr(self, n) else None for n in names}

    def attribute(self) -> dict[str, Any]:
        """What the handlers decode."""
        flags = ("scale", "bias", "residual", "save_input", "save_signs")
        numbers = {name: np.int64(getattr(self, name)) for name in flags}
        return {"activation": self.activation, **numbers}

    def words(self) -> list[str]:
        """Such as "scale", "bias", "residual", "relu"."""
        parts = [n for n in ("scale", "bias", "residual") if getattr(self, n)]
        if self.activation != "identity":
            parts.append(self.activation)
        return parts

    def describe(self) -> str:
        return ", ".join(self.words())


def stock(epilogue: Epilogue, axis: int, c: jax.Array, *rest: jax.Array) -> list[Any]:
    """[y], or [y, z], from c = conv(x, w), by XLA."""
    named = epilogue.named(rest)

    def per_channel(a: jax.Array) -> jax.Array:
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


def signs_shape(shape: Sequence[int], params: ConvParams) -> tuple[int, ...]:
    """Of y's signs, given y's."""
    axis = params.axis("y", "K")
    return tuple(n // 8 if i == axis else n for i, n in enumerate(shape))


def _epilogue_call(
    epilogue: Epilogue, params: ConvParams, c: jax.Array, *rest: jax.Array
) -> list[Any]:
    """One pass over c by a kernel of ours, in place where c is not needed."""
    g = params.geometry
    layout = geo.layout("y", params.dimension_numbers)
    arrays = [c, *rest]
    layouts = [(0,) if a.ndim == 1 else layout for a in arrays]
    count = 1 + epilogue.save_input
    call = native.ffi_call(
        names.of_channels("conv_epilogue", g.K, c.dtype, *epilogue.words()),
        "jax_convbatch_epilogue",
        [jax.ShapeDtypeStruct(c.shape, c.dtype)] * count,
        input_layouts=layouts,
        output_layouts=[layout] * count,
        input_output_aliases={0: count - 1},
    )
    sizes = dict(rows=np.int64(g.N * g.output_pixels), K=np.int64(g.K))
    return list(call(*arrays, **sizes, epilogue=epilogue.attribute()))


def layer_plan(
    chosen: Plan,
    epilogue: Epilogue,
    params: ConvParams,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    platform: str,
) -> OneCall | None:
    """How fprop and what follows it run as one call, or None; `chosen`: fprop's."""
    problem = Problem(
        "fprop",
        params.geometry,
        np.dtype(dtype),
        np.dtype(out_dtype),
        platform,
        params.workspace_limit,
        params.precision_level,
    )
    return plan.layer_plan(problem, chosen, epilogue.attribute())


def _local_layer(
    platform: str,
    epilogue: Epilogue,
    out_dtype: DTypeLike,
    params: ConvParams,
    arrays: Sequence[jax.Array],
    add: Callable[[jax.Array], jax.Array] | None = None,
) -> list[jax.Array]:
    """What one device does with its part of the operands.

    `add` sums parts of conv(x, w) over devices, where there are any.
    """
    x, w, *rest = arrays
    fprop = OPS["fprop"]
    local = params.with_sizes(**primitives.local_sizes(fprop, params, x, w))
    shape = local.shape("y")
    if 0 in (x.size, w.size, math.prod(shape)):
        zeros = jnp.zeros(shape, out_dtype)
        return stock(epilogue, params.axis("y", "K"), zeros, *rest)
    chosen = plan.plan_of(local, "fprop", x.dtype, out_dtype, platform)
    empty = not epilogue.describe()
    one_call = None
    if add is None and not empty:
        one_call = layer_plan(chosen, epilogue, local, x.dtype, out_dtype, platform)
    if epilogue.save_signs and not (one_call and one_call.signs):
        plain = epilogue._replace(save_signs=False)
        out = _local_layer(platform, plain, out_dtype, params, arrays, add)
        return [*out, activations.signs_of(out[0], params.axis("y", "K"))]
    if one_call:
        return _fused_call(one_call, epilogue, local, x, w, rest, out_dtype)
    c = chosen.run(fprop, x, w, local, out_dtype)
    c = add(c) if add else c
    return [c] if empty else _epilogue_call(epilogue, local, c, *rest)


def _fused_call(
    chosen: OneCall,
    epilogue: Epilogue,
    params: ConvParams,
    x: jax.Array,
    w: jax.Array,
    rest: Sequence[jax.Array],
    out_dtype: DTypeLike,
) -> list[jax.Array]:
    layouts = geo.layouts(params.dimension_numbers, chosen.engine)
    y = jax.ShapeDtypeStruct(params.shape("y"), out_dtype)
    more = [y] if epilogue.save_input else []
    if epilogue.save_signs:
        shape = signs_shape(y.shape, params)
        more.append(jax.ShapeDtypeStruct(shape, np.uint8))
    per_channel = [(0,)] * (epilogue.scale + epilogue.bias)
    out, _, *saved = native.ffi_call(
        params.name("conv_fprop", x.dtype, *epilogue.words()),
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
        **attributes(params, chosen.slice, chosen.config),
        epilogue=epilogue.attribute(),
    )
    return [out, *saved]


def _xla_layer(
    epilogue: Epilogue,
    out_dtype: DTypeLike,
    params: ConvParams,
    x: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
) -> list[jax.Array]:
    c = xla_call("fprop", x, w, params, out_dtype)
    return stock(epilogue, params.axis("y", "K"), c, *rest)


def lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    params: ConvParams,
    epilogue: Epilogue,
    out_dtype: DTypeLike,
    out_sharding: Any,
) -> list[Any]:
    platform = platform or ctx.module_context.platforms[0]
    # For its errors, as in primitives.py.
    dtype = ctx.avals_in[0].dtype
    chosen = plan.plan_of(params, "fprop", dtype, out_dtype, platform)
    fun: Callable[..., list[Any]]
    if chosen.engine == "xla":
        fun = partial(_xla_layer, epilogue, out_dtype, params)
    else:
        local = partial(_local_layer, platform, epilogue, out_dtype)
        if _compat.partitions(ctx):
            fun = partition_layer.partitioned_layer(
                local, OPS["fprop"], params, epilogue
            )
        else:
            fun = lambda *arrays: local(params, arrays)  # noqa: E731
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)
