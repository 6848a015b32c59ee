# SPDX-License-Identifier: Apache-2.0
"""Partitioned calls: JAX's `custom_partitioning` under a name, and where there is any.

The private names of JAX are those of the partitioner and of its shardings.
"""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any

from jax._src import config, core, custom_partitioning, dispatch, xla_bridge
from jax._src.interpreters import mlir
from jax._src.sharding import IndivisibleError
from jax._src.sharding_impls import (
    ShardingContext,
    SPMDAxisContext,
    parse_flatten_op_sharding,
)
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxlib import xla_client
from jaxlib.mlir import ir

from jax_convbatch._compat.declared import declared
from jax_convbatch._compat.names import location


def decode_sharding(sharding: Any, mesh: Mesh) -> PartitionSpec:
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

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.info = custom_partitioning._sharding_callbacks[key]
        self.told: dict[Any, Any] = {}


_partitioned: weakref.WeakValueDictionary[bytes, _Partitioned] = (
    weakref.WeakValueDictionary()
)


def _partition(
    arg_shapes: Any,
    arg_shardings: Any,
    result_shape: Any,
    result_sharding: Any,
    name: bytes,
) -> Any:
    """What XLA asks for every call; those of one name are lowered once."""
    call = _partitioned[name]
    given = (*arg_shapes, *arg_shardings, result_shape, result_sharding)
    if given not in call.told:
        call.told[given] = custom_partitioning._custom_partitioning_partition(
            arg_shapes, arg_shardings, result_shape, result_sharding, call.key
        )
    return call.told[given]


def _lower_partitioned(
    ctx: mlir.LoweringRuleContext, *values: Any, name: str, title: str, **params: Any
) -> Any:
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


@declared
def _partitioner() -> None:
    dispatch.prim_requires_devices_during_lowering.add(partitioned_p)
    mlir.register_lowering(partitioned_p, _lower_partitioned)
    register = partial(
        xla_client.register_custom_call_partitioner,
        name=_PARTITIONED,
        prop_user_sharding=lambda sharding, shape, name: sharding,
        partition=_partition,
        infer_sharding_from_operands=lambda *_: None,  # asked of GSPMD's calls alone
        can_side_effecting_have_replicated_sharding=True,
    )
    register()
    xla_bridge.register_plugin_callbacks(register)


_partitioner()


def partitions(ctx: mlir.LoweringRuleContext) -> bool:
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
    if not known or _on_one_device(ctx):
        return False
    return not ctx.module_context.lowering_parameters.for_export


def _on_one_device(ctx: mlir.LoweringRuleContext) -> bool:
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
