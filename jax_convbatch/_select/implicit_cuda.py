# SPDX-License-Identifier: Apache-2.0
"""How implicit_gemm runs a convolution on CUDA: by one kernel, or by several calls.

The native code says which kernel it has. What it has none for is put together from
convolutions that it has kernels for: three spatial axes (`depth.py`), wide groups
(`wide_groups.py`), channel multipliers (`multipliers.py`) and, at HIGH, products of
TF32 (`tf32x3.py`). A convolution of a dilated x is planned as its `dual`.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import Any

from jax_convbatch._native import targets
from jax_convbatch._plans import (
    depth,
    dual,
    folded,
    multipliers,
    one_output,
    padded,
    patches,
    tap_columns,
    tf32x3,
    wide_groups,
)
from jax_convbatch._plans.kinds import OneCall, Plan
from jax_convbatch._plans.planners import (
    Problem,
    Unable,
    largest_slice,
    sliced_limit,
)
from jax_convbatch._select import folds
from jax_convbatch._shapes.geometry import ConvGeometry

DTYPES = ("bfloat16", "float16", "float32")
WITHOUT_GPU = "this without a GPU to plan for"
QUADS = padded.Wanted(multiple=4, even=False)
_HIGH, _HIGHEST = 1, 2  # of jax.lax.Precision


def sees_gpu() -> bool:
    """Whether JAX has a GPU to plan for."""
    return targets.device_name("cuda") != "unknown"


def planned(problem: Problem) -> Plan:
    """
    Raises:
      Unable: dtypes or a geometry that nothing here covers, or a limit that is too
        small for it.
    """
    dtype = problem.dtype.name
    if dtype not in DTYPES or problem.out_dtype != problem.dtype:
        raise Unable(f"operands of {dtype} and a result of {problem.out_dtype.name}")
    if (fold := folds.fold_of(problem)) > 1:
        with contextlib.suppress(Unable):  # the limit, say
            return folded.plan(problem, fold, _as_it_is)
    if folds.has_tap_columns(problem):
        with contextlib.suppress(Unable):
            return tap_columns.plan(problem, _as_it_is)
    if patches.is_product(problem) and not problem.config:
        with contextlib.suppress(Unable):
            return patches.plan(problem, _as_it_is)
    if _is_sum(problem) and not problem.config:
        return one_output.Sum()
    return _as_it_is(problem)


def is_another(problem: Problem) -> bool:
    """Whether another convolution takes a problem's place, which has configurations of
    its own."""
    sums = folds.has_tap_columns(problem) or _is_sum(problem)
    return sums or folds.folds(problem) or patches.is_product(problem)


def _is_sum(problem: Problem) -> bool:
    return targets.is_hopper() and one_output.covers(problem)


def _as_it_is(problem: Problem) -> Plan:
    """`planned`, of pixels and taps as they are."""
    g, dtype = problem.geometry, problem.dtype.name
    native = native_plans(problem)
    if copies_slices(problem, native):
        return _of_whole_channels(problem) or _deep(problem)
    if _is_high(problem) and not _serves_high(native):
        return tf32x3.plan(problem, partial(_one_of, problem))
    if one := one_by_one(problem, native):
        return _wide_groups(replace(problem, geometry=one))
    if isinstance(native, str):
        if _wants_whole_quads(problem) and (
            copied := padded.plan(problem, QUADS, planned)
        ):
            return copied
        if dtype == "float32" and (one := multipliers.geometry(g)):
            return _multiplier(problem, one)
        raise Unable(native if sees_gpu() else WITHOUT_GPU)
    return _one_call(problem, native)


def native_plans(problem: Problem) -> list[dict[str, Any]] | str:
    """`targets.implicit_gemm_plans`, of the strided convolution where x is dilated.

    At HIGH six products by one kernel, which are faster than three by three; where
    there are none, those of TF32, whose configurations the three have.
    """
    op, g, dtype = problem.op, problem.geometry, problem.dtype.name
    strided = dual.geometry(g)
    if strided:
        op, g = dual.OPS[op][0], strided
    if problem.precision == _HIGH:
        found = targets.implicit_gemm_plans(op, g, dtype, True)
        if _serves_high(found):
            return found
    # Groups are multiplied in true float32 at HIGH, too.
    exact = problem.precision >= (_HIGHEST if g.groups == 1 else _HIGH)
    return targets.implicit_gemm_plans(op, g, dtype, exact)


def copies_slices(problem: Problem, native: list[dict[str, Any]] | str) -> bool:
    """Whether three spatial axes run by kernels of two; `native`: plans of three.

    At HIGH, too, but of few channels: six products by one kernel are of two axes alone.
    """
    high = _is_high(problem) and not _serves_high(native)
    return depth.is_deep(problem.geometry) and (isinstance(native, str) or high)


def _is_high(problem: Problem) -> bool:
    """Groups are multiplied in true float32."""
    f32 = problem.dtype.itemsize == 4
    return f32 and problem.precision == _HIGH and problem.geometry.groups == 1


def one_by_one(
    problem: Problem, native: list[dict[str, Any]] | str
) -> ConvGeometry | None:
    """The convolution of one group where wide groups run so; `native`: plans of all.

    They do where kernels of all groups are slow or not there. Slow ones still serve
    by name where there are none of one group: on a GPU before Hopper, say.
    """
    one = wide_groups.geometry(problem.geometry)
    if one is None or isinstance(native, str):
        return one
    if native[0]["preferred"]:
        return None
    of_one = native_plans(replace(problem, geometry=one))
    return None if isinstance(of_one, str) else one


def _serves_high(plans: list[dict[str, Any]] | str) -> bool:
    return isinstance(plans, list) and plans[0].get("high", False)


def _one_call(problem: Problem, native: list[dict[str, Any]]) -> Plan:
    """The first of the kernel's configurations that the limit has room for."""
    plans = [n for n in native if problem.config in ("", n["config"])]
    if not plans:
        raise Unable(f"a configuration {problem.config!r}")
    limit = problem.workspace_limit
    room = math.inf if limit is None else limit
    plan = next((n for n in plans if n["workspace"] <= room), plans[0])
    problem.check_workspace(plan["workspace"], "partial sums")
    reason = f"{plan['path']} of {plan['config']}"
    strided = dual.geometry(problem.geometry) is not None
    if strided:
        reason += f", as {dual.OPS[problem.op][0]} of the strided convolution"
    call = OneCall(
        "implicit_gemm",
        reason,
        workspace_bytes=plan["workspace"],
        by_name_only=not plan["preferred"],
        epilogue=plan["epilogue"],
        signs=plan["signs"],
        config=plan["config"],
    )
    return dual.Strided.like(call, of=call) if strided else call


def _wide_groups(one: Problem) -> Plan:
    """Of groups that no kernel takes together; `one`: of one of them."""
    plan = planned(one)
    return wide_groups.OneByOne(
        "implicit_gemm",
        f"groups one by one, {plan.reason}",
        workspace_bytes=plan.workspace_bytes,
        by_name_only=plan.by_name_only,
        of=plan,
    )


def _wants_whole_quads(problem: Problem) -> bool:
    """f32 groups of a few channels, with zeros beside them: kernels of those load four
    channels at once. Not where they do not take it, or depthwise ones take less.
    """
    g, few, most = problem.geometry, 8, 32
    if problem.dtype.itemsize != 4 or g.groups == 1 or max(g.C, g.K) > most * g.groups:
        return False
    if g.groups == g.C and few * g.groups > g.K:
        return False
    copies = padded.geometry(g, QUADS)
    if copies is None or copies != g._replace(C=copies.C, K=copies.K):
        return False
    native = native_plans(replace(problem, geometry=copies))
    return not isinstance(native, str) and native[0]["preferred"]


def _multiplier(problem: Problem, depthwise: ConvGeometry) -> Plan:
    plan = planned(replace(problem, geometry=depthwise))
    copies = multipliers.copy_bytes(problem.geometry, problem.dtype.itemsize)
    size = plan.workspace_bytes + copies
    problem.check_workspace(size, "copies of channels")
    return multipliers.Depthwise(
        "implicit_gemm",
        f"depthwise with copies of channels, {plan.reason}",
        workspace_bytes=size,
        of=plan,
    )


def _of_whole_channels(problem: Problem) -> Plan | None:
    """Of three spatial axes and channels that TMA does not take, with zeros beside
    them, where x is read in place then: it is copied once at the most, not for each
    tap of depth. Not under a limit, which would decide by the batch what runs.
    """
    g, multiple = problem.geometry, 16 // problem.dtype.itemsize
    wanted = padded.Wanted(multiple, even=False)
    other = padded.geometry(g, wanted)
    if other is None or other != g._replace(C=other.C, K=other.K):
        return None
    if problem.workspace_limit is not None or _is_high(problem):
        return None
    in_place = not isinstance(native_plans(replace(problem, geometry=other)), str)
    return padded.plan(problem, wanted, _as_it_is) if in_place else None


def _one_of(several: Problem, one: Problem) -> Plan:
    """A call of several, whose workspaces are counted together.

    Under a limit one without a workspace, where there is one: some sums have one in
    small batches alone, and the batch would decide whether all fit.
    """
    if several.workspace_limit is not None and several.op != "wgrad":
        with contextlib.suppress(Unable):
            return _as_it_is(replace(one, workspace_limit=0))
    return _as_it_is(replace(one, workspace_limit=None))


def _deep(problem: Problem) -> Plan:
    """Of three spatial axes."""
    op, geometry, dtype = problem.op, problem.geometry, problem.dtype
    if strided := dual.geometry(geometry):
        its = dual.OPS[op][0]
        plan = _deep(replace(problem, op=its, geometry=strided))
        reason = f"{plan.reason}, as {its} of the strided convolution"
        return dual.Strided.like(plan, reason=reason, of=plan)
    if geometry.input_dilation[0] > 1:
        raise Unable("three spatial axes with both strides and an input dilation")

    def pieces(samples: int) -> tuple[tuple[Plan | None, ...], int]:
        """The pieces' plans, and the bytes of their copies and workspaces."""
        g = geometry._replace(N=samples)
        plans = tuple(
            two and _one_of(problem, replace(problem, geometry=two))
            for two in depth.convolutions(op, g, dtype.itemsize)
        )
        extra = depth.extra_bytes(op, g, dtype.itemsize)
        return plans, extra + sum(p.workspace_bytes for p in plans if p)

    plans, size = pieces(geometry.N)
    samples = 0
    limit = sliced_limit(problem.workspace_limit, "cuda", lambda: pieces(1)[1])
    if op != "wgrad" and size > limit:
        most = largest_slice(lambda n: pieces(n)[1], limit, geometry.N - 1)
        if most:
            # As even as they can be: the last one overlaps its neighbour.
            samples = -(-geometry.N // -(-geometry.N // most))
            plans, size = pieces(samples)
    problem.check_workspace(size, "copies of slices")
    there = [p for p in plans if p]
    return depth.OfSlices(
        "implicit_gemm",
        f"taps of depth as channels, {there[0].reason}" if there else "no taps",
        slice=samples,
        workspace_bytes=size,
        by_name_only=any(p.by_name_only for p in there),
        pieces=plans,
    )
