"""Every private JAX name that the project uses, for jax 0.10.2 to 0.12.x.

A JAX primitive that behaves as a built-in one (sharding in types, varying manual
axes, lowering under a mesh) cannot be written with public names alone.
"""

from jax._src import core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax._src.lax.convolution import (
    _conv_general_dilated_sharding_rule as lax_conv_sharding_rule,
)
from jax._src.lax.convolution import (
    conv_general_dilated_p as lax_conv_p,
)
from jax._src.lax.lax import canonicalize_precision
from jax._src.lax.utils import standard_primitive
from jax._src.sharding_impls import canonicalize_sharding

__all__ = [
    "ad",
    "auto_insert_reshard",
    "batching",
    "canonicalize_precision",
    "canonicalize_sharding",
    "dce_jaxpr",
    "is_constant_shape",
    "lax_conv_p",
    "lax_conv_sharding_rule",
    "linear_primitive",
    "lower_fun",
    "mlir",
    "standard_primitive",
    "typeof",
    "with_sharding",
]

auto_insert_reshard = core.auto_insert_reshard
is_constant_shape = core.is_constant_shape
lower_fun = mlir.lower_fun
typeof = core.typeof


def linear_primitive(name, shape_rule, dtype_rule, sharding_rule):
    """A primitive with one array result, as `jax.lax` makes its own."""
    from functools import partial

    primitive = standard_primitive(
        shape_rule,
        dtype_rule,
        name,
        sharding_rule=sharding_rule,
        vma_rule=partial(core.standard_vma_rule, name),
    )
    # custom_partitioning, which the lowering uses, wants the device assignment.
    dispatch.prim_requires_devices_during_lowering.add(primitive)
    return primitive


def with_sharding(ctx, values):
    """Lowered results with the sharding of their types (explicit meshes)."""
    return [
        mlir.lower_with_sharding_in_types(ctx, value, aval)
        for value, aval in zip(values, ctx.avals_out, strict=True)
    ]
