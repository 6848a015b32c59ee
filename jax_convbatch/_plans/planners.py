# SPDX-License-Identifier: Apache-2.0
"""How each engine runs a convolution: slices and workspace.

A planner says for one engine what it would take, or raises Unable; `plan.py` chooses.
That of implicit_gemm on CUDA is in `implicit_cuda.py`, that of im2col_gemm in
`columns.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from jax_convbatch._native import targets
from jax_convbatch._plans.kinds import OneCall, Plan
from jax_convbatch._shapes.geometry import ConvGeometry

# Bytes of workspace where the caller sets no limit. On the CPU the columns of a
# slice should still be in the last-level cache when the GEMM reads them. On
# CUDA a slice should be long enough to hide its launches and to fill the GPU,
# while the buffer stays small beside the activations of a training step.
DEFAULT_WORKSPACE = {"cpu": 16 << 20, "cuda": 256 << 20}

INT32_MAX = 2**31 - 1
_ALIGNMENT = 256  # of each piece of the workspace; Workspace in ffi_checks.h


@dataclass(frozen=True)
class Problem:
    """What there is to run.

    Attributes:
      op: "fprop", "dgrad" or "wgrad".
      geometry: of this device's part of the convolution.
      dtype, out_dtype: of the operands and of the result.
      platform: "cpu" or "cuda".
      workspace_limit, precision, config: as in `plan.make_plan`.
    """

    op: str
    geometry: ConvGeometry
    dtype: np.dtype
    out_dtype: np.dtype
    platform: str
    workspace_limit: int | None = None
    precision: int = 0
    config: str = ""

    def check_workspace(self, size: int, of: str) -> None:
        """
        Raises:
          Unable: `of`, which takes so many bytes, is over the limit.
        """
        if self.workspace_limit is not None and size > self.workspace_limit:
            raise Unable(
                f"its {of} take {size} bytes, over the workspace_limit of "
                f"{self.workspace_limit}"
            )

    def beside(self, size: int, of: str, geometry: ConvGeometry) -> Problem:
        """The same of another convolution, with what the limit leaves.

        Raises:
          Unable: `of`, which takes so many bytes beside it, is over the limit.
        """
        self.check_workspace(size, of)
        limit = self.workspace_limit
        left = None if limit is None else limit - size
        return replace(self, geometry=geometry, workspace_limit=left)


class Unable(Exception):
    """What an engine does not cover, in words."""


def check_sides(g: ConvGeometry) -> None:
    """
    Raises:
      Unable: the matrices of a sample have sides that no engine's sizes hold.
    """
    if max(g.output_pixels, g.column_size, g.K, g.C) > INT32_MAX:
        raise Unable("a matrix of one sample with a side over 2^31 - 1")


def check_somewhere(platforms: Iterable[str], planned: Callable[[str], object]) -> None:
    """For use while tracing, before it is known where a convolution will run.

    Args:
      platforms: those that there may be code for.
      planned: the plan on one of them.

    Raises:
      ValueError: what `planned` raises, where it does on all that have code: the
        default platform's, if that is one.
    """
    refusal: ValueError | None = None
    here = targets.default_platform()
    there = filter(targets.available, platforms)
    for platform in sorted(there, key=lambda name: (name != here, name)):
        try:
            planned(platform)
            return
        except ValueError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def sliced_limit(
    workspace_limit: int | None, platform: str, one_sample: Callable[[], int]
) -> int:
    """Bytes for what can be cut into slices of the batch, by default one at least."""
    if workspace_limit is not None:
        return int(workspace_limit)
    return max(DEFAULT_WORKSPACE[platform], one_sample())


# Blocks of dw that one thread sums: kRows and kColumns in cpu/implicit/wgrad.cc.
_WGRAD_ROWS, _WGRAD_COLUMNS = 256, 512
# Groups of no more channels have kernels without blocks: cpu/implicit/narrow_plan.cc.
_DIRECT_CHANNELS = 12


def implicit_cpu(problem: Problem) -> Plan:
    """The pixels that wgrad sums are cut into parts, which are added in order.

    Some 32 tasks, each of many pixels, whose sums take no more than 4 MiB together.
    Over the limit the parts are formed one after the other, with the same bits.
    """
    g, limit = problem.geometry, problem.workspace_limit
    reason = f"{targets.instruction_set()} kernels"
    if problem.op != "wgrad":
        return OneCall("implicit_gemm", reason)
    rows = -(-g.column_size // _WGRAD_ROWS)
    blocks = rows * -(-(g.K // g.groups) // _WGRAD_COLUMNS) * g.groups
    least = 1024
    if g.groups > 1 and max(g.C, g.K) // g.groups <= _DIRECT_CHANNELS:
        blocks, least = 1, 128
    itemsize = max(problem.dtype.itemsize, 4)
    parts = min(
        -(-32 // max(blocks, 1)),
        g.N * g.output_pixels // least,
        (4 << 20) // max(g.w_size * itemsize, 1),
    )
    # Powers of two share out evenly.
    parts = 1 << max(parts, 1).bit_length() - 1
    workspace = aligned(parts * g.w_size, itemsize) if parts > 1 else 0
    if limit is not None and workspace > limit:
        workspace = 0
    return OneCall("implicit_gemm", reason, parts, workspace)


def aligned(count: int, itemsize: int) -> int:
    """Bytes of `count` items, rounded up as the native code carves them."""
    return -(-count * itemsize // _ALIGNMENT) * _ALIGNMENT


def largest_slice(cost: Callable[[int], int], limit: int, most: int) -> int:
    """The largest n <= most with cost(n) <= limit, or 0; cost is increasing."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
