# SPDX-License-Identifier: Apache-2.0
"""Every private JAX name that the project uses, for jax 0.10.2 to 0.12.x.

A JAX primitive that behaves as a built-in one (sharding in types, varying manual
axes, lowering under a mesh) cannot be written with public names alone.
"""

import contextlib
import math
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import (
    checkify,
    config,
    core,
    custom_partitioning,
    dispatch,
    xla_bridge,
)
from jax._src.ad_util import Zero, p2tz
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters.partial_eval import dce_jaxpr, dce_rules
from jax._src.lax import convolution
from jax._src.lax.lax import canonicalize_precision
from jax._src.lax.utils import standard_primitive
from jax._src.sharding import IndivisibleError
from jax._src.sharding_impls import (
    ShardingContext,
    SPMDAxisContext,
    canonicalize_sharding,
    parse_flatten_op_sharding,
)
from jax.experimental import jet
from jax.extend import source_info_util
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxlib import xla_client
from jaxlib.mlir import ir

from jax_convbatch._compat.names import location, print_with_name

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
    "mlir",
    "multi_primitive",
    "on_one_device",
    "partitioned_p",
    "partitions",
    "primitive",
    "typeof",
    "with_sharding",
    "zero_cotangent",
    "zero_tangent",
]

# Messages and profiles name the user's line, as they do for jax.lax.
source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))

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
    print_with_name(new)
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
        rule = partial(_watched, primitive, lowering, platform)
        mlir.register_lowering(primitive, rule, platform=platform)


# Called with a platform before something is lowered for it by `jax.export`.
export_listeners: list[Callable[[str], None]] = []


def around_lowering(primitive, platform: str, ctx, params):
    """A context for the lowering of a primitive; log.py has one of its own."""
    return contextlib.nullcontext()


def _watched(primitive, lowering, platform, ctx, *operands, **params):
    if platform and ctx.module_context.lowering_parameters.for_export:
        for listener in export_listeners:
            listener(platform)
    at = platform or ctx.module_context.platforms[0]
    with around_lowering(primitive, at, ctx, params):
        return lowering(platform, ctx, *operands, **params)


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
    """Whether a tangent or cotangent is nothing but zeros: symbolic ones, or none.

    What follows from an empty array is then no operation of its own. XLA cannot
    compile one whose operands are all empty within a `shard_map` that is not jitted,
    over some of a mesh's axes ("'func.call' op expected at least one operand").
    """
    return type(tangent) is Zero or 0 in tangent.shape


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


_PARTITIONED = "jax_convbatch_partitioned"


class _Partitioned:
    """A partitioned call, and what the partitioner was told of it."""

    def __init__(self, key: bytes):
        self.key = key
        self.info = custom_partitioning._sharding_callbacks[key]
        self.told: dict = {}


_partitioned: weakref.WeakValueDictionary[bytes, _Partitioned] = (
    weakref.WeakValueDictionary()
)


def _partition(arg_shapes, arg_shardings, result_shape, result_sharding, name):
    """What XLA asks for every call; those of one name are lowered once."""
    call = _partitioned[name]
    given = (*arg_shapes, *arg_shardings, result_shape, result_sharding)
    if given not in call.told:
        call.told[given] = custom_partitioning._custom_partitioning_partition(
            arg_shapes, arg_shardings, result_shape, result_sharding, call.key
        )
    return call.told[given]


def _lower_partitioned(ctx, *values, name, title, **params):
    """As JAX does, but for the name: JAX's is an address."""
    lower = custom_partitioning._custom_partitioning_lowering_rule
    with location(ctx, title):
        out = lower(ctx, *values, **params)
    attributes = getattr(out[0].owner, "attributes", {})
    target, told = "call_target_name", "backend_config"
    jaxs = ir.StringAttr.get(custom_partitioning._CUSTOM_PARTITIONING_CALL_NAME)
    if target not in attributes or attributes[target] != jaxs:
        return out  # lowered as it is: there is nothing to partition
    call = _Partitioned(attributes[told].value.encode())
    context = ctx.module_context.axis_context
    if isinstance(context, SPMDAxisContext):
        types = {name: AxisType.Manual for name in context.manual_axes}
        abstract = context.mesh.abstract_mesh.update_axis_types(types)
        call.info.mesh = Mesh(
            context.mesh.devices, abstract.axis_names, axis_types=abstract.axis_types
        )
    mesh = call.info.mesh
    name = f"{name} {[*mesh.shape.values()]} {[t.name for t in mesh.axis_types]}"
    call = _partitioned.setdefault(name.encode(), call)
    # Until the program is compiled.
    ctx.module_context.add_keepalive(call)
    attributes[target] = ir.StringAttr.get(_PARTITIONED)
    attributes[told] = ir.StringAttr.get(name)
    return out


# `custom_partitioning_p` with a `name`, which says all that the call does, and a
# `title`, which profiles show.
partitioned_p = core.Primitive("conv_partitioned")
partitioned_p.multiple_results = True
partitioned_p.def_abstract_eval(lambda *_, call, **__: call.out_avals)
dispatch.prim_requires_devices_during_lowering.add(partitioned_p)
mlir.register_lowering(partitioned_p, _lower_partitioned)

_with_partitioner = partial(
    xla_client.register_custom_call_partitioner,
    name=_PARTITIONED,
    prop_user_sharding=lambda sharding, shape, name: sharding,
    partition=_partition,
    infer_sharding_from_operands=lambda *_: None,  # asked of GSPMD's calls alone
    can_side_effecting_have_replicated_sharding=True,
)
_with_partitioner()
xla_bridge.register_plugin_callbacks(_with_partitioner)


def partitions(ctx) -> bool:
    """Whether what is lowered here can be a partitioned call.

    It asks for the devices, which are not known inside the lowering of a primitive
    that never asked for them; one has nothing to share. It calls back to Python,
    which a program that `jax.export` writes cannot. And its rule is Shardy's, which
    GSPMD does not read. There every device does the whole.

    So it does where an array is empty, for the reason that `is_zero` gives.
    """
    if any(0 in aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)):
        return False
    if not config.use_shardy_partitioner.value:
        return False
    context = ctx.module_context.axis_context
    known = (
        not isinstance(context, ShardingContext)
        or context.device_assignment is not None
    )
    if not known or on_one_device(ctx):
        return False
    return not ctx.module_context.lowering_parameters.for_export


def on_one_device(ctx) -> bool:
    """Whether what is lowered runs whole on one device, with nothing to cut.

    So it does within a `shard_map` over some of a mesh's axes where all others have
    one device, whose shardings JAX cannot read. (Over all axes JAX lowers a partitioned
    call as it is.)
    """
    context = ctx.module_context.axis_context
    if isinstance(context, ShardingContext):
        return context.num_devices == 1
    shape, manual = context.mesh.shape, context.manual_axes
    free = [size for name, size in shape.items() if name not in manual]
    return bool(free) and math.prod(free) == 1
