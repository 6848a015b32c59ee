# SPDX-License-Identifier: Apache-2.0
"""How cuDNN runs a convolution, or a layer, on CUDA.

Its heuristics choose, without timing, among deterministic engines; for fprop and dgrad
with the bits of one choice for every batch (`ffi/cuda/cudnn/plans.h`). What its graphs
cannot say is put into words that they have: a dilated input as the `dual` strided
convolution, negative padding by a copy of x (`padded.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax_convbatch._native import targets
from jax_convbatch._plans import depth, dual, padded, tf32x3
from jax_convbatch._plans.kinds import OneCall, Plan
from jax_convbatch._plans.planners import DEFAULT_WORKSPACE, Problem, Unable

DTYPES = ("bfloat16", "float16", "float32", "float64")
TUNED = 6  # configurations that `tune` measures
_HIGH = 1  # of jax.lax.Precision


def planned(problem: Problem) -> Plan:
    """
    Raises:
      Unable: cuDNN is not there, or refuses the convolution, or nothing of it fits the
        limit.
    """
    _check_dtypes(problem)
    g = problem.geometry
    # Parts side by side would be in other groups: those are multiplied in true float32.
    high = problem.dtype.name == "float32" and problem.precision == _HIGH
    if high and g.groups == 1:
        return tf32x3.plan(problem, planned)
    if strided := dual.geometry(g, grouped=True):
        its = dual.OPS[problem.op][0]
        plan = planned(replace(problem, op=its, geometry=strided))
        reason = f"{plan.reason}, as {its} of the strided convolution"
        return dual.Strided.like(plan, reason=reason, of=plan)
    if copied := padded.plan(problem, _wanted(problem), planned):
        return copied
    found = _first(problem, {})
    return OneCall(
        "cudnn",
        _reason(found),
        workspace_bytes=found["workspace"],
        config=found["config"],
    )


def layer(problem: Problem, epilogue: dict[str, Any], plain: OneCall) -> OneCall | None:
    """fprop and what follows it as one graph; None where separate calls are faster.

    Kernels that cuDNN compiles for a graph, which takes it most of a second, are taken
    in 16 bits alone: in f32 they are up to twice as slow as its own kernel and one pass
    over y, and with groups many times (measured on an H100).

    Args:
      problem: of fprop.
      epilogue: `Epilogue.attribute()`.
      plain: the plan of fprop alone.
    """
    if problem.geometry.groups > 1:
        return None
    try:
        found = _first(replace(problem, config=""), epilogue)
    except Unable:
        return None
    if found["compiled"] and problem.dtype.itemsize > 2:
        return None
    return replace(
        plain,
        reason=_reason(found),
        workspace_bytes=found["workspace"],
        config=found["config"],
    )


def configs(problem: Problem) -> list[str]:
    """Names of the configurations that `tune` measures, the heuristics' first."""
    try:
        # The products' configurations differ.
        if isinstance(planned(problem), tf32x3.ThreeProducts):
            return [""]
    except Unable:
        return []
    if strided := dual.geometry(problem.geometry, grouped=True):
        its = dual.OPS[problem.op][0]
        return configs(replace(problem, op=its, geometry=strided))
    if copies := padded.geometry(problem.geometry, _wanted(problem)):
        return configs(replace(problem, geometry=copies))
    found = _plans(problem, {}, TUNED)
    return [] if isinstance(found, str) else [each["config"] for each in found]


def _check_dtypes(problem: Problem) -> None:
    dtype, out = problem.dtype.name, problem.out_dtype.name
    wider = out == "float32" and problem.dtype.itemsize == 2
    if dtype not in DTYPES or (out != dtype and not wider):
        raise Unable(f"operands of {dtype} and a result of {out}")
    if refusal := targets.cudnn_problem():
        raise Unable(f"this: {refusal}")


def _first(problem: Problem, epilogue: dict[str, Any]) -> dict[str, Any]:
    """The configuration that is asked for, or the heuristics' first."""
    found = _plans(problem, epilogue, TUNED if problem.config else 1)
    if isinstance(found, str):
        raise Unable(f"this: {found}")
    for each in found:
        if problem.config in ("", each["config"]):
            return each
    raise Unable(f"a configuration {problem.config!r}")


def _plans(
    problem: Problem, epilogue: dict[str, Any], most: int
) -> list[dict[str, Any]] | str:
    limit = problem.workspace_limit
    return targets.cudnn_plans(
        problem.op,
        problem.geometry,
        problem.dtype.name,
        problem.out_dtype.name,
        problem.precision == 0,
        tuple(epilogue.items()),
        DEFAULT_WORKSPACE["cuda"] if limit is None else int(limit),
        most,
    )


def _reason(found: dict[str, Any]) -> str:
    reason = f"cuDNN {targets.cudnn_version()}, {found['config']}"
    if found["depends_on_batch"]:
        reason += ", whose bits may depend on the batch"
    return reason


def _wanted(problem: Problem) -> padded.Wanted:
    """What is made a copy for, as it is faster (measured on an H100).

    Tensor cores want 16 bytes of channels; of a few channels kernels without them, or
    cuDNN's own copies, are faster. Kernels for depthwise layers, and the best of fprop
    of three axes, want both sides of an axis padded alike.
    """
    g, itemsize = problem.geometry, problem.dtype.itemsize
    tensor_cores = itemsize == 2 or (itemsize == 4 and problem.precision == 0)
    many = g.groups == 1 and min(g.C, g.K) >= 16
    depthwise = g.C == g.groups > 1
    deep = problem.op == "fprop" and depth.is_deep(g)
    multiple = 16 // itemsize if tensor_cores and many else 1
    return padded.Wanted(multiple, depthwise or deep)
