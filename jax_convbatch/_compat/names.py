# SPDX-License-Identifier: Apache-2.0
"""Private JAX names for what operations are called; other files of this package have
the others.

JAX names an operation of a compiled program after its primitive, and so do profiles.
Those made here have a name for each call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from jax._src import core, dispatch, ffi
from jax._src.interpreters import mlir

from jax_convbatch._compat.declared import declared

__all__ = ["location", "named_ffi_call_p", "print_with_name"]


def location(ctx: mlir.LoweringRuleContext, name: str) -> AbstractContextManager[Any]:
    """A context in which what is lowered is an operation called `name`."""
    return mlir.source_info_to_location(
        ctx.module_context, core.Primitive(name), ctx.name_stack, ctx.traceback
    )


def _lower(
    ctx: mlir.LoweringRuleContext, *operands: Any, name: str, **params: Any
) -> Any:
    with location(ctx, name):
        return ffi.ffi_call_lowering(ctx, *operands, **params)


# JAX's `ffi_call_p` with a `name`.
named_ffi_call_p = core.Primitive("conv_native")
named_ffi_call_p.multiple_results = True
named_ffi_call_p.def_effectful_abstract_eval(ffi.ffi_call_abstract_eval)
dispatch.simple_impl(named_ffi_call_p)
declared(mlir.register_lowering)(named_ffi_call_p, _lower)


def print_with_name(primitive: core.Primitive) -> None:
    """Has jaxprs show the name of each convolution by `primitive`."""
    core.pp_eqn_rules[primitive] = _print


def _print(eqn: Any, context: Any, settings: Any) -> Any:
    shown, of = sorted(eqn.params), eqn.params.get("params")
    if of is not None:
        # That of the arrays, not of relu's bits.
        dtypes = [v.aval.dtype for v in eqn.invars if v.aval.dtype != np.uint8]
        name = of.name(eqn.primitive.name, dtypes[0])
        eqn = eqn.replace(params={"name": name, **eqn.params})
        shown.insert(0, "name")
    return core._pp_eqn(eqn, context, settings, shown)
