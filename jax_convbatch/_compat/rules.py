# SPDX-License-Identifier: Apache-2.0
"""Primitives and their rules.

A JAX primitive that behaves as a built-in one (sharding in types, varying manual
axes, lowering under a mesh) cannot be written with public names alone. JAX is told of
all that is declared here by `declared.register_all`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import checkify, core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.lax.utils import standard_primitive
from jax.experimental import jet

from jax_convbatch._compat.declared import declared
from jax_convbatch._compat.names import print_with_name

Rule = Callable[..., Any]


def primitive(
    name: str, shape_rule: Rule, dtype_rule: Rule, sharding_rule: Rule
) -> core.Primitive:
    """A primitive with one array result, as `jax.lax` makes its own."""
    new = standard_primitive(
        shape_rule,
        dtype_rule,
        name,
        sharding_rule=sharding_rule,
        vma_rule=partial(core.standard_vma_rule, name),
    )
    _as_ours(new)
    return new


def multi_primitive(
    name: str,
    *rules: tuple[Rule, Rule, Rule],
    count: Callable[[dict[str, Any]], int],
) -> core.Primitive:
    """A primitive with the first `count(params)` of the results that `rules` tell.

    Each of `rules` is (shape_rule, dtype_rule, sharding_rule) of one result.
    """
    singles = [primitive(name, *rule) for rule in rules]
    new = core.Primitive(name)
    new.multiple_results = True
    new.def_impl(partial(dispatch.apply_primitive, new))

    def abstract_eval(*avals: Any, **params: Any) -> list[Any]:
        return [
            single.abstract_eval(*avals, **params)[0]
            for single in singles[: count(params)]
        ]

    new.def_abstract_eval(abstract_eval)
    _as_ours(new)
    return new


@declared
def _as_ours(new: core.Primitive) -> None:
    checkify.error_checks[new] = partial(checkify.nan_error_check, new)
    # custom_partitioning, which the lowering uses, wants the device assignment.
    dispatch.prim_requires_devices_during_lowering.add(new)
    print_with_name(new)


@declared
def defbilinear(primitive: core.Primitive, *transposes: Rule) -> None:
    """Derivatives of a primitive linear in each operand, Taylor mode included."""
    ad.defbilinear(primitive, *transposes)
    jet.jet_rules[primitive] = partial(jet._bilinear_taylor_rule, primitive)


@declared
def deflinear(primitive: core.Primitive, transpose: Rule) -> None:
    """As `defbilinear`, for one operand."""
    ad.deflinear2(primitive, transpose)
    jet.deflinear(primitive)


@declared
def defjet(primitive: core.Primitive, parts: Rule) -> None:
    """Taylor mode of a primitive, as that of parts(*operands, **params)."""
    jet.jet_rules[primitive] = partial(_jet_of_parts, parts)


def _jet_of_parts(parts: Rule, primals: Any, series: Any, **params: Any) -> Any:
    return jet.jet(partial(parts, **params), primals, series, factorial_scaled=False)


@declared
def defjvp(primitive: core.Primitive, jvp: Rule, transpose: Rule | None = None) -> None:
    """jvp(primals, tangents, **params) -> outs, their tangents; tangents may be
    symbolic zeros (`is_zero`). transpose(cotangents, *operands, **params), for a
    primitive that is linear in some operands (`is_linear_input`)."""
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose


@declared
def defbatching(primitive: core.Primitive, rule: Rule) -> None:
    """rule(axis_data, operands, dims, **params) -> results, where their axes are."""

    def with_shortcut(axis_data: Any, operands: Any, dims: Any, **params: Any) -> Any:
        if all(d is None for d in dims):
            out = primitive.bind(*operands, **params)
            return out, [None] * len(out) if primitive.multiple_results else None
        return rule(axis_data, operands, dims, **params)

    batching.fancy_primitive_batchers[primitive] = with_shortcut


@declared
def deflowering(primitive: core.Primitive, lowering: Rule) -> None:
    """lowering(platform, ctx, *operands, **params); platform: "cpu", "cuda" or, of
    those that there is no native code for, None."""
    for platform in ("cpu", "cuda", None):
        rule = partial(_watched, primitive, lowering, platform)
        mlir.register_lowering(primitive, rule, platform=platform)


@declared
def defsilent(
    primitive: core.Primitive, lowering: Rule, platform: str | None = None
) -> None:
    """lowering(ctx, *operands, **params) of what nobody is told about, for a platform
    or for all others."""
    mlir.register_lowering(primitive, lowering, platform=platform)


# Called with a platform before something is lowered for it by `jax.export`.
export_listeners: list[Callable[[str], None]] = []
# (primitive, platform, ctx, params) -> a context for the lowering of a primitive.
Watcher = Callable[..., contextlib.AbstractContextManager[None]]
_watchers: list[Watcher] = []


def watch_lowerings(watcher: Watcher) -> None:
    """Has primitives lowered within a context of `watcher`."""
    _watchers.append(watcher)


def _watched(
    primitive: core.Primitive,
    lowering: Rule,
    platform: str | None,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    **params: Any,
) -> Any:
    if platform and ctx.module_context.lowering_parameters.for_export:
        for listener in export_listeners:
            listener(platform)
    at = platform or ctx.module_context.platforms[0]
    with contextlib.ExitStack() as stack:
        for watcher in _watchers:
            stack.enter_context(watcher(primitive, at, ctx, params))
        return lowering(platform, ctx, *operands, **params)
