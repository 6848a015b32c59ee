# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a deformable convolution, and with how much workspace.

Options and words are those of plan.py; what differs is that the columns are sampled,
which one engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jax_convbatch import _compat
from jax_convbatch._native import hopper, targets
from jax_convbatch._plans import planners
from jax_convbatch._plans.planners import (
    DEFAULT_WORKSPACE,
    Unable,
    aligned,
    largest_slice,
    sliced_limit,
)
from jax_convbatch._select import implicit_cuda
from jax_convbatch._shapes.geometry import ConvGeometry

# What samples at offsets, and where: every geometry and floating dtype.
ENGINE = "im2col_gemm"
PLATFORMS = ("cpu", "cuda")


class Problem(NamedTuple):
    """What there is to run.

    Attributes:
      op: "fprop", "dgrad" (of x and the corners' weights) or "wgrad".
      wanted: of dgrad: which of "x" and "corners".
      g: of this device's part of the convolution.
      offset_groups: of x's channels.
      dtype: of x, w and y.
      platform, precision, workspace_limit: as in `plan.make_plan`.
    """

    op: str
    wanted: tuple[str, ...]
    g: ConvGeometry
    offset_groups: int
    dtype: np.dtype
    platform: str
    precision: int = 0
    workspace_limit: int | None = None


@dataclass(frozen=True)
class DeformPlan:
    """What will run, and how; attributes as those of `Plan`.

    Attributes:
      adds_bias: whether its product does, as it stores.
    """

    engine: str
    reason: str
    slice: int = 0
    workspace_bytes: int = 0
    adds_bias: bool = False
    config: str = ""
    source: str = "rule"


def make_plan(problem: Problem, algorithm: str = "auto") -> DeformPlan:
    """Chooses between the engine and `jax.lax`, and the slice, as `plan.make_plan`.

    Raises:
      ValueError: the engine asked for by name does not run here, or the limit
        is too small for one sample.
    """
    if algorithm == "xla":
        return DeformPlan("xla", "asked for by name", source="name")
    try:
        _check(ENGINE if algorithm == "auto" else algorithm, problem)
        chosen = _plan_columns(problem)
    except Unable as unable:
        if algorithm == "auto":
            return DeformPlan("xla", str(unable))
        refusal = str(unable)
    else:
        if algorithm == "auto":
            return chosen
        return replace(chosen, reason="asked for by name", source="name")
    raise ValueError(
        f"algorithm={algorithm!r} cannot run this deformable {problem.op} on platform "
        f"{problem.platform!r}: {refusal}. algorithm='xla' and algorithm='auto' can."
    )


def check_somewhere(problem: Problem, algorithm: str) -> None:
    """Raises what `make_plan` raises on every platform there is code for."""
    if algorithm == "auto" and problem.workspace_limit is None:
        return
    planners.check_somewhere(
        PLATFORMS,
        lambda platform: make_plan(problem._replace(platform=platform), algorithm),
    )


def _check(engine: str, problem: Problem) -> None:
    """Raises Unable where no geometry would do."""
    if why := targets.problem(problem.platform):
        raise Unable(why)
    if engine != ENGINE:
        raise Unable(f"{engine} does not sample at offsets, {ENGINE} does")
    g = problem.g
    if not _compat.is_constant_shape((g.N, g.H, g.W, g.C, g.K, g.P, g.Q)):
        raise Unable("symbolic sizes")
    planners.check_sides(g)


def _plan_columns(problem: Problem) -> DeformPlan:
    """im2col_gemm: as many samples as the limit allows."""
    g, platform, asked = problem.g, problem.platform, problem.workspace_limit
    most, cost = _COSTS[platform](problem)
    if not most:
        raise Unable("over 2^31 - 1 positions in one sample")
    reason, config, adds_bias = "columns in memory, then a GEMM", "", False
    if platform == "cuda":
        config, products = "cublas", _products(problem, 1)
        if products and problem.op == "wgrad":
            chosen = _wgrad_by_chunks(problem)
            if asked is None or chosen.workspace_bytes <= asked:
                return chosen
        elif products:
            config, adds_bias = "implicit_gemm", products["adds_bias"]
            # The same for every slice.
            columns_cost, more = cost, aligned(products["workspace"], 1)
            cost = lambda n: columns_cost(n) + more  # noqa: E731
    limit = sliced_limit(asked, platform, lambda: cost(1))
    samples = largest_slice(cost, limit, min(max(g.N, 1), most))
    if not samples:
        raise ValueError(
            f"workspace_limit={asked} bytes is too small for this "
            f"deformable {problem.op}: one sample needs {cost(1)} bytes"
        )
    return DeformPlan(
        *("im2col_gemm", reason, samples, cost(samples)),
        adds_bias=adds_bias,
        config=config,
    )


def _products(problem: Problem, samples: int) -> dict[str, Any] | None:
    """How implicit_gemm multiplies columns of so many samples, where it does."""
    op, _, g, _, dtype, _, precision, _ = problem
    covered = dtype.name in implicit_cuda.DTYPES
    if not covered or (dtype.name == "float32" and precision > 0):
        return None
    return hopper.column_plan(op, g, dtype.name, samples)


def _wgrad_by_chunks(problem: Problem) -> DeformPlan:
    """dw is summed over chunks of the batch, which do not depend on the limit."""
    g = problem.g
    columns = g.output_pixels * g.column_size
    chunk = DEFAULT_WORKSPACE["cuda"] // (4 * columns)
    chunk = min(max(chunk, 1), _COSTS["cuda"](problem)[0], max(g.N, 1))
    products = _products(problem, chunk)
    assert products is not None  # as of one sample
    workspace = aligned(chunk * columns, 4) + aligned(products["workspace"], 1)
    if chunk < g.N:
        workspace += 2 * aligned(g.w_size, 4)
    reason = "columns in memory, then a GEMM"
    return DeformPlan("im2col_gemm", reason, chunk, workspace, config="implicit_gemm")


def _cost_cpu(problem: Problem) -> tuple[int, Callable[[int], int]]:
    """The most samples at a time, and the bytes that some take, as
    ffi/cpu/deform.cc carves them."""
    op, wanted, g, _, dtype, *_ = problem
    x = g.H * g.W * g.C
    pieces = [(g.output_pixels * g.R * g.S * g.C, max(dtype.itemsize, 4))]
    fixed = 0
    if dtype.itemsize == 2:
        # The BLAS has no 16-bit types, and sampling reads a pixel often.
        pieces.append((g.output_pixels * g.K, 4))
        if op != "dgrad" or "corners" in wanted:
            pieces.append((x, 4))
        if op == "dgrad" and "x" in wanted:
            pieces.append((x, 4))
        fixed = aligned(g.w_size, 4)
    return max(g.N, 1), lambda n: _bytes(pieces, n) + fixed


def _cost_cuda(problem: Problem) -> tuple[int, Callable[[int], int]]:
    """The same for ffi/cuda/handlers/deform.cc."""
    op, wanted, g, groups, dtype, *_ = problem
    accumulator = max(dtype.itemsize, 4)
    columns = g.output_pixels * g.R * g.S * g.C
    entries = g.output_pixels * g.R * g.S * groups
    cells = groups * (g.H + 1) * (g.W + 1)
    pieces = [(columns, accumulator if op == "dgrad" else dtype.itemsize)]
    fixed = 0
    if op == "dgrad" and "x" in wanted:
        # Rows, corners; keys and values twice; what sorting takes: SortBytes.
        pieces += [(entries, 4), (4 * entries, accumulator), *[(entries, 4)] * 4]
        pieces += [(entries, 1), (cells, 4)]
        # Where a cell's entries start has an end, too.
        fixed = (64 << 10) + aligned(1, 4)
    if op == "wgrad":
        pieces.append((g.w_size, accumulator))
        fixed = aligned(g.w_size, accumulator)
    most = planners.INT32_MAX // max(columns, g.H * g.W * g.C, cells + 1)
    return most, lambda n: _bytes(pieces, n) + fixed


def _bytes(pieces: Sequence[tuple[int, int]], samples: int) -> int:
    return sum(aligned(samples * count, size) for count, size in pieces)


_COSTS = {"cpu": _cost_cpu, "cuda": _cost_cuda}
