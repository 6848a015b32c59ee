# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a convolution, how it slices the batch, what memory it takes.

A plan is a pure function of geometry, dtype, device, the caller's options and the
files of `choices.py`: the same program gets the same plan, and so the same bits, on
every run. What was measured for a convolution chooses; where nothing was, the rule:
the first of the engines of `rules.py` that covers it, with the configuration that it
prefers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._native import targets
from jax_convbatch._plans import columns, met_taps, planners
from jax_convbatch._plans.kinds import InXla, OneCall, Plan
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._plans.planners import DEFAULT_WORKSPACE, Problem, Unable
from jax_convbatch._select import choices, cudnn, implicit_cuda, rules
from jax_convbatch._shapes.geometry import MAX_SPATIAL, ConvGeometry

# Engines, with the platforms they have code for.
ENGINES: dict[str, tuple[str, ...]] = {
    "implicit_gemm": ("cpu", "cuda"),
    "cudnn": ("cuda",),
    "im2col_gemm": ("cpu", "cuda"),
    "per_sample": ("cpu", "cuda"),
}
_PLANNERS: dict[tuple[str, str], Callable[[Problem], Plan]] = {
    ("implicit_gemm", "cpu"): planners.implicit_cpu,
    ("implicit_gemm", "cuda"): implicit_cuda.planned,
    ("cudnn", "cuda"): cudnn.planned,
    **{
        (name, platform): partial(columns.columns, name)
        for name in ("im2col_gemm", "per_sample")
        for platform in ENGINES[name]
    },
}
# Engines that compute a whole layer in one kernel, by platform; after the others
# one pass over y follows.
EPILOGUES: dict[str, tuple[str, ...]] = {
    "cpu": ("implicit_gemm",),
    "cuda": ("implicit_gemm", "cudnn"),
}
# Those that cover every geometry and floating dtype, on each platform.
GENERAL_ENGINES = {
    "cpu": ("implicit_gemm", "im2col_gemm", "per_sample"),
    "cuda": ("im2col_gemm", "per_sample"),
}
ALGORITHMS = ("auto", *ENGINES, "xla")

_HAS_CONFIGS = (("implicit_gemm", "cuda"), ("cudnn", "cuda"))
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def check_options(algorithm: str, workspace_limit: int | None) -> None:
    """Raises ValueError or TypeError where an option could never be valid."""
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"unknown algorithm {algorithm!r}; the choices are "
            + ", ".join(map(repr, ALGORITHMS))
        )
    if workspace_limit is None:
        return
    if isinstance(workspace_limit, bool) or not isinstance(
        workspace_limit, (int, np.integer)
    ):
        raise TypeError(
            "workspace_limit must be a number of bytes (int) or None, got "
            f"{workspace_limit!r}"
        )
    if workspace_limit < 0:
        raise ValueError(f"workspace_limit must be >= 0 bytes, got {workspace_limit}")


def unsupported(dtype: DTypeLike, out_dtype: DTypeLike, rank: int) -> str | None:
    """Why no native engine covers a convolution on any platform, or None.

    Args:
      dtype: of x and w.
      out_dtype: of y.
      rank: number of spatial dimensions.
    """
    dtype, out_dtype = np.dtype(dtype), np.dtype(out_dtype)
    if dtype.name not in _FLOATS:
        return f"dtype {dtype.name} (native: {', '.join(_FLOATS)})"
    if out_dtype.name not in _FLOATS:
        return f"result dtype {out_dtype.name} (native: {', '.join(_FLOATS)})"
    if out_dtype != dtype and out_dtype.itemsize <= dtype.itemsize:
        return f"result dtype {out_dtype.name} for operands of {dtype.name}"
    if rank > MAX_SPATIAL:
        return f"{rank} spatial dimensions (native: at most {MAX_SPATIAL})"
    return None


def make_plan(
    op: str,
    geometry: ConvGeometry,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    platform: str,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    precision: int = 0,
    config: str = "",
) -> Plan:
    """Chooses engine, configuration and slice for one of fprop, dgrad and wgrad.

    Args:
      op: "fprop", "dgrad" or "wgrad".
      geometry: of this device's part of the convolution.
      dtype: of the operands.
      out_dtype: of the result.
      platform: "cpu", "cuda" or another name that JAX lowers for.
      algorithm: one of `ALGORITHMS`.
      workspace_limit: bytes that the workspace may take, or None for
        `DEFAULT_WORKSPACE[platform]` (or one sample's columns, if larger).
      precision: `jax.lax.Precision`: 0 DEFAULT, 1 HIGH, 2 HIGHEST.
      config: of the engine asked for by name; by default what was measured, or its
        rule's.

    Raises:
      ValueError: the engine asked for by name does not run here, or the limit
        is too small for it.
    """
    if algorithm == "xla":
        return InXla(reason="asked for by name", source="name")
    problem = Problem(
        op,
        geometry,
        np.dtype(dtype),
        np.dtype(out_dtype),
        platform,
        workspace_limit,
        precision,
    )

    def planned(name: str, config: str) -> Plan:
        _check(name, geometry, platform)
        if config and (name, platform) not in _HAS_CONFIGS:
            raise Unable(f"a configuration {config!r}")
        plan = _of_engine(name, replace(problem, config=config))
        if algorithm != "auto":
            reason = f"asked for by name; {plan.reason}"
            return replace(plan, reason=reason, source="name")
        return plan

    names = [n for n, platforms in ENGINES.items() if platform in platforms]
    if algorithm != "auto":
        names = [algorithm]
    if names and not config and targets.available(platform):
        found = choices.measured(
            op,
            geometry,
            problem.dtype.name,
            problem.out_dtype.name,
            precision,
            platform,
        )
        for choice in found:
            if choice.engine not in ALGORITHMS:
                choices.warn_of_engine(choice.engine, platform)
            if choice.engine not in names:
                continue
            plan = _measured(problem, choice, planned)
            if plan is not None:
                asked = algorithm != "auto"
                return plan if asked else replace(plan, source=choice.source)
    if algorithm == "auto":
        return _by_rule(problem, lambda name: planned(name, config))
    try:
        return planned(algorithm, config)
    except Unable as unable:
        raise ValueError(
            f"algorithm={algorithm!r} cannot run this {op} on platform {platform!r}: "
            f"{algorithm} does not cover {unable}. algorithm='xla' and "
            "algorithm='auto' can."
        ) from None


def plan_of(
    params: ConvParams, op: str, dtype: DTypeLike, out_dtype: DTypeLike, platform: str
) -> Plan:
    """`make_plan` with the options of a call."""
    return make_plan(
        op,
        params.geometry,
        dtype,
        out_dtype,
        platform,
        params.algorithm,
        params.workspace_limit,
        params.precision_level,
        params.config,
    )


def _measured(
    problem: Problem, choice: choices.Choice, planned: Callable[[str, str], Plan]
) -> Plan | None:
    """The plan of a choice, if it can run.

    Without its configuration where this version has it no more: the engine, and with
    it the bits, must not depend on N. None where the limit is too small.
    """
    # Nor the order of a sum: what is another convolution has one configuration.
    ours = choice.engine == "implicit_gemm"
    other = ours and implicit_cuda.is_another(met_taps.reduced(problem))
    kept = "" if other else choice.config
    for config in dict.fromkeys((kept, "")):
        with contextlib.suppress(Unable, ValueError):
            return planned(choice.engine, config)
    return None


def _by_rule(problem: Problem, planned: Callable[[str], Plan]) -> Plan:
    """The first of the rule's engines that covers it and is worth while; else
    `jax.lax`."""
    refusals: list[str] = []
    native = targets.available(problem.platform)
    for name in rules.engines(problem) if native else ():
        try:
            chosen = planned(name)
        except Unable as unable:
            refusals.append(f"{name} does not cover {unable}")
            continue
        except ValueError as refusal:  # the limit has no room for one sample
            refusals.append(f"{name}: {refusal}")
            continue
        if chosen.by_name_only:
            refusals.append(f"{name} ({chosen.reason}) would take longer")
            continue
        reasons = [chosen.reason, *refusals]
        if chosen.engine == "im2col_gemm" and not refusals:  # they take memory
            reasons.append(f"columns are faster: {rules.why(problem)}")
        return replace(chosen, reason="; ".join(reasons))
    return InXla(reason="; ".join(refusals) or _no_code(problem.platform))


def configs(
    engine: str,
    op: str,
    geometry: ConvGeometry,
    dtype: DTypeLike,
    platform: str,
    precision: int = 0,
) -> list[str]:
    """Names of an engine's configurations, the rule's first; [""] where it has one."""
    if (engine, platform) not in _HAS_CONFIGS:
        return [""]
    dtype = np.dtype(dtype)
    problem = Problem(op, geometry, dtype, dtype, platform, precision=precision)
    problem = met_taps.reduced(problem)
    if engine == "cudnn":
        return cudnn.configs(problem)
    if dtype.name not in implicit_cuda.DTYPES:
        return []
    native = implicit_cuda.native_plans(problem)
    one = implicit_cuda.one_by_one(problem, native)
    # The convolutions that these are made of have theirs.
    other = implicit_cuda.is_another(problem)
    if one or other or implicit_cuda.copies_slices(problem, native):
        return [""]
    if isinstance(native, str):  # copies with more channels may serve
        with contextlib.suppress(Unable):
            implicit_cuda.planned(problem)
            return [""]
        return []
    return [each["config"] for each in native]


def layer_plan(
    problem: Problem, chosen: Plan, epilogue: dict[str, Any]
) -> OneCall | None:
    """How fprop and what follows it run as one call, or None where they do not.

    Args:
      problem: of fprop.
      chosen: its plan.
      epilogue: `Epilogue.attribute()`.
    """
    if not has_epilogue(chosen, problem.platform, problem.dtype, problem.out_dtype):
        return None
    assert isinstance(chosen, OneCall)  # others have no epilogue
    if chosen.engine == "cudnn":
        return cudnn.layer(problem, epilogue, chosen)
    return chosen


def has_epilogue(
    chosen: Plan, platform: str, dtype: DTypeLike, out_dtype: DTypeLike
) -> bool:
    """Whether what a plan runs forms bias, residual and activation itself."""
    there = chosen.engine in EPILOGUES[platform] and chosen.epilogue
    return there and np.dtype(dtype) == np.dtype(out_dtype)


def check_somewhere(
    op: str,
    geometry: ConvGeometry,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    algorithm: str,
    workspace_limit: int | None,
    precision: int,
) -> None:
    """Raises what `make_plan` raises on every platform there is code for."""
    planners.check_somewhere(
        DEFAULT_WORKSPACE,
        lambda platform: make_plan(
            op,
            geometry,
            dtype,
            out_dtype,
            platform,
            algorithm,
            workspace_limit,
            precision,
        ),
    )


def _of_engine(name: str, problem: Problem) -> Plan:
    """
    Raises:
      Unable: the engine does not cover it, nor what is planned in its place.
    """
    planned = _PLANNERS[name, problem.platform]
    if met_taps.reduced(problem) != problem:
        with contextlib.suppress(Unable):
            return met_taps.plan(problem, planned)
    return planned(problem)


def _no_code(platform: str) -> str:
    return targets.problem(platform) or f"no engine for platform {platform!r}"


def _check(engine: str, g: ConvGeometry, platform: str) -> None:
    """Raises Unable where no geometry would do."""
    if targets.problem(platform) or platform not in ENGINES[engine]:
        raise Unable(f"this: {_no_code(platform)}")
    planners.check_sides(g)
