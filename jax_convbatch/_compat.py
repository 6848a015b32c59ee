"""Every private JAX name that the project uses, for jax 0.10.2 to 0.12.x.

A JAX primitive that behaves as a built-in one (sharding in types, varying manual
axes, lowering under a mesh) cannot be written with public names alone.
"""

import os
from functools import partial

from jax._src import checkify, core, dispatch
from jax._src.ad_util import Zero, p2tz
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters.partial_eval import dce_jaxpr, dce_rules
from jax._src.lax.convolution import (
    _conv_general_dilated_sharding_rule as lax_conv_sharding_rule,
)
from jax._src.lax.convolution import (
    conv_general_dilated as lax_conv,
)
from jax._src.lax.convolution import (
    conv_general_dilated_p as lax_conv_p,
)
from jax._src.lax.lax import canonicalize_precision
from jax._src.lax.utils import standard_primitive
from jax._src.sharding import IndivisibleError
from jax._src.sharding_impls import (
    ShardingContext,
    canonicalize_sharding,
    parse_flatten_op_sharding,
)
from jax.experimental import jet
from jax.extend import source_info_util
from jax.sharding import PartitionSpec

__all__ = [
    "auto_insert_reshard",
    "batching",
    "canonicalize_precision",
    "canonicalize_sharding",
    "dce_jaxpr",
    "decode_sharding",
    "defbatching",
    "defbilinear",
    "defdce",
    "defjet",
    "defjvp",
    "deflinear",
    "deflowering",
    "has_explicit_axes",
    "instantiate_zeros",
    "is_constant_shape",
    "is_linear_input",
    "is_zero",
    "lax_conv",
    "lax_conv_p",
    "lax_conv_sharding_rule",
    "lower_fun",
    "mlir",
    "multi_primitive",
    "on_one_device",
    "partitions",
    "primitive",
    "typeof",
    "with_sharding",
    "zero_cotangent",
    "zero_tangent",
]

# Messages and profiles name the user's line, as they do for jax.lax.
source_info_util.register_exclusion(os.path.dirname(__file__))

auto_insert_reshard = core.auto_insert_reshard
instantiate_zeros = ad.instantiate_zeros
is_constant_shape = core.is_constant_shape
lower_fun = mlir.lower_fun
typeof = core.typeof


def primitive(name, shape_rule, dtype_rule, sharding_rule):
    """A primitive with one array result, as `jax.lax` makes its own."""
    return _registered(
        standard_primitive(
            shape_rule,
            dtype_rule,
            name,
            sharding_rule=sharding_rule,
            vma_rule=partial(core.standard_vma_rule, name),
        )
    )


def multi_primitive(name, *rules, count):
    """A primitive with the first `count(params)` of the results that `rules` tell.

    Each of `rules` is (shape_rule, dtype_rule, sharding_rule) of one result.
    """
    singles = [primitive(name, *rule) for rule in rules]
    new = core.Primitive(name)
    new.multiple_results = True
    new.def_impl(partial(dispatch.apply_primitive, new))

    def abstract_eval(*avals, **params):
        return [
            single.abstract_eval(*avals, **params)[0]
            for single in singles[: count(params)]
        ]

    new.def_abstract_eval(abstract_eval)
    return _registered(new)


def _registered(new):
    checkify.error_checks[new] = partial(checkify.nan_error_check, new)
    # custom_partitioning, which the lowering uses, wants the device assignment.
    dispatch.prim_requires_devices_during_lowering.add(new)
    return new


def defbilinear(primitive, *transposes):
    """Derivatives of a primitive linear in each operand, Taylor mode included."""
    ad.defbilinear(primitive, *transposes)
    jet.jet_rules[primitive] = partial(jet._bilinear_taylor_rule, primitive)


def deflinear(primitive, transpose):
    """As `defbilinear`, for one operand."""
    ad.deflinear2(primitive, transpose)
    jet.deflinear(primitive)


def defjet(primitive, parts):
    """Taylor mode of a primitive, as that of parts(*operands, **params)."""
    jet.jet_rules[primitive] = partial(_jet_of_parts, parts)


def _jet_of_parts(parts, primals, series, **params):
    return jet.jet(partial(parts, **params), primals, series, factorial_scaled=False)


def defjvp(primitive, jvp, transpose=None):
    """jvp(primals, tangents, **params) -> outs, their tangents; tangents may be
    symbolic zeros (`is_zero`). transpose(cotangents, *operands, **params), for a
    primitive that is linear in some operands (`is_linear_input`)."""
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose


def defbatching(primitive, rule):
    """rule(axis_data, operands, dims, **params) -> results, where their axes are."""

    def with_shortcut(axis_data, operands, dims, **params):
        if all(d is None for d in dims):
            out = primitive.bind(*operands, **params)
            return out, [None] * len(out) if primitive.multiple_results else None
        return rule(axis_data, operands, dims, **params)

    batching.fancy_primitive_batchers[primitive] = with_shortcut


def deflowering(primitive, lowering):
    """lowering(platform, ctx, *operands, **params); platform: "cpu", "cuda" or, of
    those that there is no native code for, None."""
    for platform in ("cpu", "cuda", None):
        mlir.register_lowering(
            primitive, partial(lowering, platform), platform=platform
        )


def defdce(primitive, narrowed):
    """narrowed(used, **params) -> params where only those results are used."""

    def rule(used, *rest):
        eqn = rest[-1]  # before it, from jax 0.12 on, which operands are live
        if not any(used):
            return [False] * len(eqn.invars), None
        params = narrowed(tuple(used), **eqn.params)
        # From jax 0.12 on a program stays itself where its equations do.
        new = eqn if params == eqn.params else eqn.replace(params=params)
        return [True] * len(eqn.invars), new

    dce_rules[primitive] = rule


def is_zero(tangent) -> bool:
    return type(tangent) is Zero


def is_linear_input(operand) -> bool:
    return ad.is_undefined_primal(operand)


def has_explicit_axes(array) -> bool:
    """Whether its type names a sharding of its own (explicit meshes)."""
    return bool(typeof(array).sharding.mesh.explicit_axes)


def zero_tangent(primal):
    return p2tz(primal)


def zero_cotangent(operand):
    """Of a transposed primitive's operand: None where it is not linear in it."""
    return Zero(operand.aval.to_ct_aval()) if ad.is_undefined_primal(operand) else None


def with_sharding(ctx, values):
    """Lowered results with the sharding of their types (explicit meshes)."""
    return [
        mlir.lower_with_sharding_in_types(ctx, value, aval)
        for value, aval in zip(values, ctx.avals_out, strict=True)
    ]


def decode_sharding(sharding, mesh):
    """A partitioner's sharding as a PartitionSpec of `mesh`; P() if none says it."""
    if sharding is None or mesh.empty:
        return PartitionSpec()
    try:
        return parse_flatten_op_sharding(sharding._to_xla_hlo_sharding(0), mesh)[0]
    except (AssertionError, IndivisibleError, KeyError, StopIteration):
        return PartitionSpec()


def partitions(ctx) -> bool:
    """Whether `custom_partitioning` can be used in what is lowered here.

    It asks for the devices, which are not known inside the lowering of a primitive
    that never asked for them; one has nothing to share. And it calls back to Python,
    which a program that `jax.export` writes cannot: there every device does the whole.
    """
    context = ctx.module_context.axis_context
    known = (
        not isinstance(context, ShardingContext)
        or context.device_assignment is not None
    )
    if not known or on_one_device(ctx):
        return False
    return not ctx.module_context.lowering_parameters.for_export


def on_one_device(ctx) -> bool:
    """Whether what is lowered runs whole on one device."""
    context = ctx.module_context.axis_context
    return isinstance(context, ShardingContext) and context.num_devices == 1
