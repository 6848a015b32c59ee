# SPDX-License-Identifier: Apache-2.0
"""Every private JAX name that this package has, for jax 0.10.2 to 0.12.x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jax._src import config, core
from jax._src.ad_util import Zero, p2tz
from jax._src.interpreters import ad, mlir
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax._src.lax import convolution
from jax._src.lax.lax import canonicalize_precision
from jax._src.sharding_impls import canonicalize_sharding

from jax_convbatch._compat.declared import register_all
from jax_convbatch._compat.partitioned import (
    decode_sharding,
    partitioned_p,
    partitions,
)
from jax_convbatch._compat.rules import (
    defbatching,
    defbilinear,
    defjet,
    defjvp,
    deflinear,
    deflowering,
    defsilent,
    export_listeners,
    multi_primitive,
    primitive,
    watch_lowerings,
)

__all__ = [
    "AxisData",
    "LoweringRuleContext",
    "Primitive",
    "auto_insert_reshard",
    "canonicalize_precision",
    "canonicalize_sharding",
    "dce_jaxpr",
    "decode_sharding",
    "defbatching",
    "defbilinear",
    "defjet",
    "defjvp",
    "deflinear",
    "deflowering",
    "defsilent",
    "export_listeners",
    "has_explicit_axes",
    "installed",
    "instantiate_zeros",
    "is_constant_shape",
    "is_linear_input",
    "is_zero",
    "lax_conv",
    "lax_conv_p",
    "lax_conv_sharding_rule",
    "lax_convs",
    "lower_fun",
    "multi_primitive",
    "partitioned_p",
    "partitions",
    "primitive",
    "register_all",
    "typeof",
    "watch_lowerings",
    "with_sharding",
    "zero_cotangent",
    "zero_tangent",
]

Primitive = core.Primitive
# JAX's own says of operands that they are abstract values, not that they are arrays.
LoweringRuleContext: TypeAlias = Any
AxisData: TypeAlias = Any  # of a batching rule
auto_insert_reshard = core.auto_insert_reshard
instantiate_zeros = ad.instantiate_zeros
is_constant_shape = core.is_constant_shape
lower_fun = mlir.lower_fun
typeof = core.typeof

# Where they are made: no one has put others in their place there.
lax_convs: dict[str, Callable[..., Any]] = {
    f"conv{name}": getattr(convolution, f"conv{name}")
    for name in ("", "_general_dilated", "_transpose", "_with_general_padding")
}
lax_conv = lax_convs["conv_general_dilated"]
lax_conv_p = convolution.conv_general_dilated_p
lax_conv_sharding_rule = convolution._conv_general_dilated_sharding_rule

# Whether install() is in force. What was traced otherwise is traced anew.
installed = config.State[bool](
    "jax_convbatch_installed",
    False,
    "Whether jax_convbatch stands in the place of jax.lax's convolutions.",
    include_in_jit_key=True,
    include_in_trace_context=True,
)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is nothing but zeros: symbolic ones, or none.

    What follows from an empty array is then no operation of its own. XLA cannot
    compile one whose operands are all empty within a `shard_map` that is not jitted,
    over some of a mesh's axes ("'func.call' op expected at least one operand").
    """
    return type(tangent) is Zero or 0 in tangent.shape


def is_linear_input(operand: Any) -> bool:
    return ad.is_undefined_primal(operand)


def has_explicit_axes(array: Any) -> bool:
    """Whether its type names a sharding of its own (explicit meshes)."""
    return bool(typeof(array).sharding.mesh.explicit_axes)


def zero_tangent(primal: Any) -> Any:
    return p2tz(primal)


def zero_cotangent(operand: Any) -> Zero | None:
    """Of a transposed primitive's operand: None where it is not linear in it."""
    return Zero(operand.aval.to_ct_aval()) if ad.is_undefined_primal(operand) else None


def with_sharding(ctx: LoweringRuleContext, values: Sequence[Any]) -> list[Any]:
    """Lowered results with the sharding of their types (explicit meshes)."""
    return [
        mlir.lower_with_sharding_in_types(ctx, value, aval)
        for value, aval in zip(values, ctx.avals_out, strict=True)
    ]
