"""How each engine runs a convolution: slices, workspace, configuration.

A planner says for one engine what it would take, or raises Unable; `plan.py` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jax_convbatch import depth, dual, multipliers, targets, tf32x3, wide_groups
from jax_convbatch.geometry import ConvGeometry

# Bytes of workspace where the caller sets no limit. On the CPU the columns of a
# slice should still be in the last-level cache when the GEMM reads them. On
# CUDA a slice should be long enough to hide its launches and to fill the GPU,
# while the buffer stays small beside the activations of a training step.
DEFAULT_WORKSPACE = {"cpu": 16 << 20, "cuda": 256 << 20}

IMPLICIT_CUDA_DTYPES = ("bfloat16", "float16", "float32")
_HIGH, _HIGHEST = 1, 2  # of jax.lax.Precision
_CONTRACTION = {"fprop": "C", "dgrad": "K", "wgrad": "N"}  # as in primitives.OPS
_ALIGNMENT = 256  # of each piece of the workspace; Workspace in ffi_checks.h


@dataclass(frozen=True)
class Plan:
    """What will run, and how.

    Attributes:
      engine: a name of `ALGORITHMS` other than "auto".
      reason: why this engine, in words.
      slice: samples that are unrolled, or copied, at a time, 0 for all of them; of
        wgrad by implicit_gemm on the CPU the parts that its pixels are summed in.
      workspace_bytes: size of the workspace buffer.
      by_name_only: "auto" leaves it to the next engine, which is faster here.
      epilogue: whether its kernel can form what follows a convolution, if the engine
        is in `EPILOGUES`.
      signs: whether that can also keep the signs of y, `activations.signs_of`.
      backward_workspace: bytes that the backward pass of a layer with relu takes by
        kernels that make dz as they read dy (fprop's plan has it), or None where there
        are none.
      parts_workspace: bytes of partial sums of its bias gradient where it takes one
        call of several kernels (fprop's plan), or None where it takes several calls.
      config: name of the engine's configuration, where it has several.
      dual: whether it runs as the gradient of a strided convolution, see `dual.py`.
      rest: of three products, what multiplies the low parts, see `tf32x3.py`.
      pieces: of three spatial axes, the plans of the convolutions of two that make up
        the result, see `depth.py`; None for slices that no tap meets.
      group: of wide groups, the plan of each, see `wide_groups.py`; of a channel
        multiplier that of a depthwise convolution, see `multipliers.py`.
      source: who chose: "name" (the caller), "tuned" (the user's file), "table" (of
        this package) or "rule".
    """

    engine: str
    reason: str
    slice: int = 0
    workspace_bytes: int = 0
    by_name_only: bool = False
    epilogue: bool = True
    signs: bool = False
    backward_workspace: int | None = None
    parts_workspace: int | None = None
    config: str = ""
    dual: bool = False
    rest: Plan | None = None
    pieces: tuple[Plan | None, ...] = ()
    group: Plan | None = None
    source: str = "rule"


class Unable(Exception):
    """What an engine does not cover, in words."""


def _plan_implicit_gemm(
    op, geometry, dtype, out_dtype, platform, workspace_limit, precision, config
) -> Plan:
    if platform == "cpu":
        return _plan_implicit_cpu(op, geometry, dtype, workspace_limit)
    if dtype.name not in IMPLICIT_CUDA_DTYPES or out_dtype != dtype:
        raise Unable(f"operands of {dtype.name} and a result of {out_dtype.name}")
    native = implicit_cuda_plans(op, geometry, dtype.name, precision)
    if depth.is_deep(geometry) and isinstance(native, str):
        return _plan_deep(op, geometry, dtype, workspace_limit, precision, config)
    # Groups are multiplied in true float32.
    high = dtype.name == "float32" and precision == _HIGH and geometry.groups == 1
    if high and not _by_six_products(native):
        return _plan_three_products(op, geometry, dtype, workspace_limit, config)
    if one := one_by_one(op, geometry, dtype.name, precision, native):
        return _plan_wide_groups(
            op, geometry, one, dtype, workspace_limit, precision, config
        )
    if isinstance(native, str):
        if dtype.name == "float32" and (one := multipliers.geometry(geometry)):
            return _plan_multiplier(
                op, geometry, one, dtype, workspace_limit, precision, config
            )
        raise Unable(native)
    plans = [n for n in native if config in ("", n["config"])]
    if not plans:
        raise Unable(f"a configuration {config!r}")
    limit = math.inf if workspace_limit is None else workspace_limit
    plan = next((n for n in plans if n["workspace"] <= limit), plans[0])
    workspace = plan["workspace"]
    if workspace > limit:
        raise Unable(
            f"its partial sums take {workspace} bytes, over the workspace_limit of "
            f"{workspace_limit}"
        )
    reason = f"{plan['path']} of {plan['config']}"
    strided = dual.geometry(geometry) is not None
    if strided:
        reason += f", as {dual.OPS[op][0]} of the strided convolution"
    return Plan(
        "implicit_gemm",
        reason,
        0,
        workspace,
        by_name_only=not plan["preferred"],
        epilogue=plan["epilogue"] and not strided,
        signs=plan["signs"] and not strided,
        backward_workspace=None if strided else plan.get("backward_workspace"),
        parts_workspace=None if strided else plan.get("parts_workspace"),
        config=plan["config"],
        dual=strided,
    )


def one_by_one(
    op: str, g: ConvGeometry, dtype: str, precision: int, native: list[dict] | str
) -> ConvGeometry | None:
    """The convolution of one group where wide groups run so; `native`: plans of all.

    They do where kernels of all groups are slow or not there. Slow ones still serve
    by name where there are none of one group: on a GPU before Hopper, say.
    """
    one = wide_groups.geometry(g)
    if one is None or isinstance(native, str):
        return one
    if native[0]["preferred"]:
        return None
    of_one = implicit_cuda_plans(op, one, dtype, precision)
    return None if isinstance(of_one, str) else one


def _plan_wide_groups(
    op, geometry, one, dtype, workspace_limit, precision, config
) -> Plan:
    """Of groups that no kernel takes together, see `wide_groups.py`."""
    plan = _plan_implicit_gemm(
        op, one, dtype, dtype, "cuda", workspace_limit, precision, config
    )
    return Plan(
        "implicit_gemm",
        f"groups one by one, {plan.reason}",
        workspace_bytes=plan.workspace_bytes,
        by_name_only=plan.by_name_only,
        epilogue=False,
        group=plan,
    )


def _plan_multiplier(
    op, geometry, one, dtype, workspace_limit, precision, config
) -> Plan:
    """Of a channel multiplier, see `multipliers.py`."""
    plan = _plan_implicit_gemm(
        op, one, dtype, dtype, "cuda", workspace_limit, precision, config
    )
    size = plan.workspace_bytes + multipliers.copy_bytes(geometry, dtype.itemsize)
    if workspace_limit is not None and size > workspace_limit:
        raise Unable(
            f"its copies of channels take {size} bytes, over the workspace_limit of "
            f"{workspace_limit}"
        )
    return Plan(
        "implicit_gemm",
        f"depthwise with copies of channels, {plan.reason}",
        workspace_bytes=size,
        epilogue=False,
        group=plan,
    )


def _plan_deep(op, geometry, dtype, workspace_limit, precision, config) -> Plan:
    """Of three spatial axes, see `depth.py`."""
    if strided := dual.geometry(geometry):
        its = dual.OPS[op][0]
        plan = _plan_deep(its, strided, dtype, workspace_limit, precision, config)
        reason = f"{plan.reason}, as {its} of the strided convolution"
        return replace(plan, reason=reason, dual=True)
    if geometry.input_dilation[0] > 1:
        raise Unable("three spatial axes with both strides and an input dilation")

    def planned(samples: int) -> tuple[tuple[Plan | None, ...], int]:
        """The pieces' plans, and the bytes of their copies and workspaces."""
        g = geometry._replace(N=samples)
        found = depth.convolutions(op, g, dtype.itemsize)
        plans = tuple(
            two
            and _plan_implicit_gemm(
                op, two, dtype, dtype, "cuda", None, precision, config
            )
            for two in found
        )
        extra = depth.extra_bytes(op, g, dtype.itemsize)
        return plans, extra + sum(p.workspace_bytes for p in plans if p)

    plans, size = planned(geometry.N)
    samples, limit = 0, sliced_limit(workspace_limit, "cuda", lambda: planned(1)[1])
    if op != "wgrad" and size > limit:
        most = largest_slice(lambda n: planned(n)[1], limit, geometry.N - 1)
        if most:
            # As even as they can be: the last one overlaps its neighbour.
            samples = -(-geometry.N // -(-geometry.N // most))
            plans, size = planned(samples)
    if workspace_limit is not None and size > workspace_limit:
        raise Unable(
            f"its copies of slices take {size} bytes, over the workspace_limit of "
            f"{workspace_limit}"
        )
    there = [p for p in plans if p]
    return Plan(
        "implicit_gemm",
        f"taps of depth as channels, {there[0].reason}" if there else "no taps",
        slice=samples,
        workspace_bytes=size,
        by_name_only=any(p.by_name_only for p in there),
        epilogue=False,
        pieces=plans,
    )


def sliced_limit(workspace_limit: int | None, platform: str, one_sample) -> int:
    """Bytes for what can be cut into slices of the batch, by default one at least."""
    if workspace_limit is not None:
        return int(workspace_limit)
    return max(DEFAULT_WORKSPACE[platform], one_sample())


def _plan_three_products(op, geometry, dtype, workspace_limit, config) -> Plan:
    """Of float32 at HIGH where there are no six, see `tf32x3.py`."""

    def planned(geometry, config=""):
        return _plan_implicit_gemm(
            op, geometry, dtype, dtype, "cuda", None, precision=0, config=config
        )

    high = planned(geometry, config)
    rest = planned(tf32x3.geometry(geometry, _CONTRACTION[op]))
    extra = tf32x3.extra_bytes(geometry, op) + rest.workspace_bytes
    if workspace_limit is not None and high.workspace_bytes + extra > workspace_limit:
        raise Unable(
            f"its parts of operands take {high.workspace_bytes + extra} bytes, over "
            f"the workspace_limit of {workspace_limit}"
        )
    return replace(
        high,
        reason=f"three products of TF32, {high.reason}",
        epilogue=False,
        signs=False,
        backward_workspace=None,
        parts_workspace=None,
        rest=rest,
    )


def implicit_cuda_plans(
    op: str, g: ConvGeometry, dtype: str, precision: int = 0
) -> list[dict] | str:
    """`targets.implicit_gemm_plans`, of the strided convolution where x is dilated.

    At HIGH six products by one kernel, which are faster than three by three; where
    there are none, those of TF32, whose configurations the three have.
    """
    strided = dual.geometry(g)
    if strided:
        op, g = dual.OPS[op][0], strided
    if precision == _HIGH:
        found = targets.implicit_gemm_plans(op, g, dtype, True)
        if _by_six_products(found):
            return found
    # Groups are multiplied in true float32 at HIGH, too.
    exact = precision >= (_HIGHEST if g.groups == 1 else _HIGH)
    return targets.implicit_gemm_plans(op, g, dtype, exact)


def _by_six_products(plans: list[dict] | str) -> bool:
    return isinstance(plans, list) and plans[0].get("six", False)


# Blocks of dw that one thread sums: kRows and kColumns in cpu/implicit/wgrad.cc.
_WGRAD_ROWS, _WGRAD_COLUMNS = 256, 512
# Groups of no more channels have kernels without blocks: cpu/implicit/narrow_plan.cc.
_DIRECT_CHANNELS = 12


def _plan_implicit_cpu(op, g: ConvGeometry, dtype, workspace_limit) -> Plan:
    """The pixels that wgrad sums are cut into parts, which are added in order.

    Some 32 tasks, each of many pixels, whose sums take no more than 4 MiB together.
    Over the limit the parts are formed one after the other, with the same bits.
    """
    reason = f"{targets.instruction_set()} kernels"
    if op != "wgrad":
        return Plan("implicit_gemm", reason)
    rows = -(-g.column_size // _WGRAD_ROWS)
    blocks = rows * -(-(g.K // g.groups) // _WGRAD_COLUMNS) * g.groups
    least = 1024
    if g.groups > 1 and max(g.C, g.K) // g.groups <= _DIRECT_CHANNELS:
        blocks, least = 1, 128
    itemsize = max(dtype.itemsize, 4)
    parts = min(
        -(-32 // max(blocks, 1)),
        g.N * g.output_pixels // least,
        (4 << 20) // max(g.w_size * itemsize, 1),
    )
    # Powers of two share out evenly.
    parts = 1 << max(parts, 1).bit_length() - 1
    workspace = aligned(parts * g.w_size, itemsize) if parts > 1 else 0
    if workspace_limit is not None and workspace > workspace_limit:
        workspace = 0
    return Plan("implicit_gemm", reason, parts, workspace)


def _plan_columns(
    engine, op, geometry, dtype, out_dtype, platform, workspace_limit, precision, config
) -> Plan:
    """im2col_gemm and per_sample: as many samples as the limit allows, or one."""
    per_sample, fixed = _workspace(op, geometry, dtype, platform)
    limit = sliced_limit(workspace_limit, platform, lambda: per_sample(1) + fixed)
    samples = 1 if engine == "per_sample" else max(geometry.N, 1)
    samples = largest_slice(per_sample, limit - fixed, samples)
    if not samples:
        raise ValueError(
            f"workspace_limit={workspace_limit} bytes is too small for this {op}: "
            f"one sample needs {per_sample(1) + fixed} bytes"
        )
    reason = f"default on {platform}"
    if (platform, dtype.name) == ("cuda", "float32"):
        reason += ", as TF32" if precision == 0 else ", in true float32"
    return Plan(engine, reason, samples, per_sample(samples) + fixed)


def aligned(count: int, itemsize: int) -> int:
    """Bytes of `count` items, rounded up as the native code carves them."""
    return -(-count * itemsize // _ALIGNMENT) * _ALIGNMENT


def _workspace(op: str, g: ConvGeometry, dtype: np.dtype, platform: str):
    """Bytes for a number of samples (a function), and bytes besides."""
    half = dtype.itemsize == 2
    accumulator = max(dtype.itemsize, 4)
    column_elements = g.output_pixels * g.column_size * g.groups
    if platform == "cpu":
        # The BLAS has no 16-bit types: columns, y and w are converted.
        columns = 0 if g.is_pointwise and not half else column_elements
        y = g.output_pixels * g.K if half else 0
        fixed = aligned(g.w_size, 4) if half else 0
        # dgrad of a strided 1x1 transposes the filter.
        one_tap = g.column_size * g.groups == g.C
        if op == "dgrad" and one_tap and not (g.is_pointwise or half):
            fixed = aligned(g.w_size, accumulator)
        return (
            lambda n: aligned(n * columns, accumulator) + aligned(n * y, 4),
            fixed,
        )
    columns = 0 if g.is_pointwise else column_elements
    itemsize = accumulator if op == "dgrad" else dtype.itemsize
    if op != "wgrad":
        return lambda n: aligned(n * columns, itemsize), 0
    return (
        lambda n: aligned(n * columns, itemsize) + aligned(n * g.w_size, accumulator),
        aligned(g.w_size, accumulator),
    )


def largest_slice(cost, limit: int, most: int) -> int:
    """The largest n <= most with cost(n) <= limit, or 0; cost is increasing."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


PLANNERS: dict[str, Callable[..., Plan]] = {
    "implicit_gemm": _plan_implicit_gemm,
    "im2col_gemm": partial(_plan_columns, "im2col_gemm"),
    "per_sample": partial(_plan_columns, "per_sample"),
}
