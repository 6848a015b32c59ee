"""Which engine runs a convolution, how it slices the batch, what memory it takes.

A plan is a pure function of geometry, dtype, device, the caller's options and the
files of `choices.py`: the same program gets the same plan, and so the same bits, on
every run. What was measured for a convolution chooses; where nothing was, the rule:
the first of `ENGINES` that covers it, with the configuration that it prefers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jax_convbatch import choices, targets
from jax_convbatch.geometry import MAX_SPATIAL, ConvGeometry

# Engines in order of preference, with the platforms they have code for.
ENGINES: dict[str, tuple[str, ...]] = {
    "implicit_gemm": ("cpu", "cuda"),
    "im2col_gemm": ("cpu", "cuda"),
    "per_sample": ("cpu", "cuda"),
}
# Engines that compute a whole layer in one kernel, by platform; after the others
# one pass over y follows.
EPILOGUES: dict[str, tuple[str, ...]] = {
    "cpu": ("implicit_gemm",),
    "cuda": ("implicit_gemm",),
}
# Those that cover every geometry and floating dtype, on each platform.
GENERAL_ENGINES = {
    "cpu": ("implicit_gemm", "im2col_gemm", "per_sample"),
    "cuda": ("im2col_gemm", "per_sample"),
}
ALGORITHMS = ("auto", *ENGINES, "xla")

# Bytes of workspace where the caller sets no limit. On the CPU the columns of a
# slice should still be in the last-level cache when the GEMM reads them. On
# CUDA a slice should be long enough to hide its launches and to fill the GPU,
# while the buffer stays small beside the activations of a training step.
DEFAULT_WORKSPACE = {"cpu": 16 << 20, "cuda": 256 << 20}

_HAS_CONFIGS = ("implicit_gemm", "cuda")
_IMPLICIT_CUDA_DTYPES = ("bfloat16", "float16", "float32")
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_ALIGNMENT = 256  # of each piece of the workspace; Workspace in ffi_checks.h
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Plan:
    """What will run: `engine` with `slice` samples at a time.

    Attributes:
      engine: a name of `ALGORITHMS` other than "auto".
      reason: why this engine, in words.
      slice: samples that are unrolled at a time.
      workspace_bytes: size of the workspace buffer.
      by_name_only: "auto" leaves it to the next engine, which is faster here.
      epilogue: whether its kernel can form what follows a convolution, if the engine
        is in `EPILOGUES`.
      config: name of the engine's configuration, where it has several.
      source: who chose: "name" (the caller), "tuned" (the user's file), "table" (of
        this package) or "rule".
    """

    engine: str
    reason: str
    slice: int = 0
    workspace_bytes: int = 0
    by_name_only: bool = False
    epilogue: bool = True
    config: str = ""
    source: str = "rule"


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


def unsupported(dtype, out_dtype, rank: int) -> str | None:
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
    dtype,
    out_dtype,
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
        return Plan("xla", "asked for by name", source="name")
    dtype, out_dtype = np.dtype(dtype), np.dtype(out_dtype)

    def planned(name: str, config: str) -> Plan:
        _check(name, geometry, platform)
        if config and (name, platform) != _HAS_CONFIGS:
            raise Unable(f"a configuration {config!r}")
        planner = _PLANNERS[name]
        plan = planner(
            op, geometry, dtype, out_dtype, platform, workspace_limit, precision, config
        )
        if algorithm != "auto":
            return replace(plan, reason="asked for by name", source="name")
        return plan

    names = [n for n, platforms in ENGINES.items() if platform in platforms]
    if algorithm != "auto":
        names = [algorithm]
    if names and not config and targets.available(platform):
        for choice in choices.measured(
            op, geometry, dtype.name, out_dtype.name, precision, platform
        ):
            if choice.engine not in names:
                continue
            # Without its configuration where this version has it no more: the
            # engine, and with it the bits, must not depend on N. Not at all where
            # the limit is too small.
            for its_config in dict.fromkeys((choice.config, "")):
                with contextlib.suppress(Unable, ValueError):
                    plan = planned(choice.engine, its_config)
                    asked = algorithm != "auto"
                    return plan if asked else replace(plan, source=choice.source)
    refusals: list[str] = []
    for name in names:
        try:
            chosen = planned(name, config)
        except Unable as unable:
            refusals.append(f"{name} does not cover {unable}")
            continue
        if algorithm == "auto" and chosen.by_name_only:
            refusals.append(f"{name} ({chosen.reason}) would take longer")
            continue
        if algorithm != "auto":
            return chosen
        if name == "im2col_gemm" and targets.is_other_gpu(platform):
            refusals.append("algorithm='xla' may be faster there")
        return replace(chosen, reason="; ".join([chosen.reason, *refusals]))
    if algorithm == "auto":
        return Plan("xla", refusals[-1] if refusals else _no_code(platform))
    raise ValueError(
        f"algorithm={algorithm!r} cannot run this {op} on platform {platform!r}: "
        f"{refusals[0]}. algorithm='xla' and algorithm='auto' can."
    )


def configs(
    engine: str, op: str, geometry: ConvGeometry, dtype, platform: str
) -> list[str]:
    """Names of an engine's configurations, the rule's first; [""] where it has one."""
    if (engine, platform) != _HAS_CONFIGS:
        return [""]
    if np.dtype(dtype).name not in _IMPLICIT_CUDA_DTYPES:
        return []
    native = targets.implicit_gemm_plans(op, geometry, np.dtype(dtype).name)
    return [] if isinstance(native, str) else [each["config"] for each in native]


class Unable(Exception):
    """What an engine does not cover, in words."""


def _plan_implicit_gemm(
    op, geometry, dtype, out_dtype, platform, workspace_limit, precision, config
) -> Plan:
    if platform == "cpu":
        return _plan_implicit_cpu(op, geometry, dtype, workspace_limit)
    if dtype.name not in _IMPLICIT_CUDA_DTYPES or out_dtype != dtype:
        raise Unable(f"operands of {dtype.name} and a result of {out_dtype.name}")
    # Groups are multiplied in true float32, at any precision.
    if dtype.name == "float32" and precision > 0 and geometry.groups == 1:
        raise Unable("float32 at a higher precision than the default, TF32")
    native = targets.implicit_gemm_plans(op, geometry, dtype.name)
    if isinstance(native, str):
        raise Unable(native)
    plan = next((n for n in native if config in ("", n["config"])), None)
    if plan is None:
        raise Unable(f"a configuration {config!r}")
    workspace = plan["workspace"]
    if workspace_limit is not None and workspace > workspace_limit:
        raise Unable(
            f"its partial sums take {workspace} bytes, over the workspace_limit of "
            f"{workspace_limit}"
        )
    reason = f"{plan['path']} of {plan['config']}"
    return Plan(
        "implicit_gemm",
        reason,
        0,
        workspace,
        by_name_only=not plan["preferred"],
        epilogue=plan["epilogue"],
        config=plan["config"],
    )


# Blocks of dw that one thread sums: kRows and kColumns in cpu/implicit/wgrad.cc.
_WGRAD_ROWS, _WGRAD_COLUMNS = 256, 512
# Groups of no more channels have kernels without blocks: cpu/implicit/direct.cc.
_DIRECT_CHANNELS = 8


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
    if g.groups > 1 and g.C == g.K and g.C // g.groups <= _DIRECT_CHANNELS:
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
    if workspace_limit is None:
        limit = max(DEFAULT_WORKSPACE[platform], per_sample(1) + fixed)
    else:
        limit = int(workspace_limit)
    samples = 1 if engine == "per_sample" else max(geometry.N, 1)
    samples = largest_slice(per_sample, limit - fixed, samples)
    if not samples:
        raise ValueError(
            f"workspace_limit={workspace_limit} bytes is too small for this {op}: "
            f"one sample needs {per_sample(1) + fixed} bytes"
        )
    return Plan(engine, f"default on {platform}", samples, per_sample(samples) + fixed)


_PLANNERS: dict[str, Callable[..., Plan]] = {
    "implicit_gemm": _plan_implicit_gemm,
    "im2col_gemm": partial(_plan_columns, "im2col_gemm"),
    "per_sample": partial(_plan_columns, "per_sample"),
}


def has_epilogue(chosen: Plan, platform: str, dtype, out_dtype) -> bool:
    """Whether what a plan runs forms bias, residual and activation itself."""
    there = chosen.engine in EPILOGUES[platform] and chosen.epilogue
    return there and np.dtype(dtype) == np.dtype(out_dtype)


def check_somewhere(
    op: str,
    geometry: ConvGeometry,
    dtype,
    out_dtype,
    algorithm: str,
    workspace_limit: int | None,
    precision: int,
) -> None:
    """Raises what `make_plan` raises on every platform there is code for.

    For use while tracing, before it is known where the convolution will run.
    """
    refusal: ValueError | None = None
    default = targets.default_platform()
    # The default platform's refusal is the one to show.
    platforms = sorted(DEFAULT_WORKSPACE, key=lambda name: name != default)
    for platform in filter(targets.available, platforms):
        try:
            make_plan(
                op,
                geometry,
                dtype,
                out_dtype,
                platform,
                algorithm,
                workspace_limit,
                precision,
            )
            return
        except ValueError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _no_code(platform: str) -> str:
    return targets.problem(platform) or f"no engine for platform {platform!r}"


def _check(engine: str, g: ConvGeometry, platform: str) -> None:
    """Raises Unable where no geometry would do."""
    if targets.problem(platform) or platform not in ENGINES[engine]:
        raise Unable(f"this: {_no_code(platform)}")
    if max(g.output_pixels, g.column_size, g.K, g.C) > _INT32_MAX:
        raise Unable("a matrix of one sample with a side over 2^31 - 1")


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
