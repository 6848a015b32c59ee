"""Which engine runs a deformable convolution, and with how much workspace.

Options, preferences and words are those of plan.py; what differs is that the
columns are sampled, which no engine but im2col_gemm does.
"""

from __future__ import annotations

import numpy as np

from jax_convbatch import plan, targets
from jax_convbatch.geometry import ConvGeometry
from jax_convbatch.plan import Plan, aligned

# Engines in order of preference, with the platforms they have code for.
ENGINES: dict[str, tuple[str, ...]] = {"im2col_gemm": ("cpu",)}

_INT32_MAX = 2**31 - 1


def make_plan(
    op: str,
    wanted: tuple[str, ...],
    g: ConvGeometry,
    dtype,
    platform: str,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> Plan:
    """Chooses engine and slice, as `plan.make_plan`.

    Args:
      op: "fprop", "dgrad" (of x and the corners' weights) or "wgrad".
      wanted: of dgrad: which of "x" and "corners".
      g: of this device's part of the convolution.
      dtype: of x, w and y.
      platform, algorithm, workspace_limit: as in `plan.make_plan`.

    Raises:
      ValueError: the engine asked for by name does not run here, or the limit
        is too small for one sample.
    """
    if algorithm == "xla":
        return Plan("xla", "asked for by name", source="name")
    names = [n for n, platforms in ENGINES.items() if platform in platforms]
    if algorithm != "auto":
        names = [algorithm] if algorithm in ENGINES else []
    problem = _refusal(g, platform)
    if problem is None and not names:
        problem = f"{algorithm} does not sample at offsets"
    if problem and algorithm == "auto":
        return Plan("xla", problem)
    if problem:
        raise ValueError(
            f"algorithm={algorithm!r} cannot run this deformable {op} on platform "
            f"{platform!r}: {problem}. algorithm='xla' and algorithm='auto' can."
        )
    samples, workspace = _slice(op, wanted, g, np.dtype(dtype), workspace_limit)
    reason = f"default on {platform}" if algorithm == "auto" else "asked for by name"
    source = "rule" if algorithm == "auto" else "name"
    return Plan(names[0], reason, samples, workspace, source=source)


def check_somewhere(
    g: ConvGeometry, dtype, algorithm: str, workspace_limit: int | None
) -> None:
    """Raises what `make_plan` raises on every platform there is code for.

    For use while tracing, before it is known where the convolution will run.
    """
    if algorithm == "auto" and workspace_limit is None:
        return
    platforms = {name for names in ENGINES.values() for name in names}
    here = targets.default_platform()
    refusal: ValueError | None = None
    # The default platform's refusal is the one to show.
    for platform in sorted({*platforms, here}, key=lambda name: name != here):
        try:
            make_plan("fprop", (), g, dtype, platform, algorithm, workspace_limit)
            return
        except ValueError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _refusal(g: ConvGeometry, platform: str) -> str | None:
    """Why no native engine samples here, or None."""
    if problem := targets.problem(platform):
        return problem
    if not any(platform in platforms for platforms in ENGINES.values()):
        return f"no engine samples at offsets on platform {platform!r} yet"
    if max(g.output_pixels, g.column_size, g.K, g.C) > _INT32_MAX:
        return "a matrix of one sample with a side over 2^31 - 1"
    return None


def _slice(op, wanted, g: ConvGeometry, dtype: np.dtype, workspace_limit):
    """Samples at a time, and bytes for them, as ffi/cpu/deform.cc carves them."""
    half = dtype.itemsize == 2
    x = g.H * g.W * g.C
    pieces = [(g.output_pixels * g.R * g.S * g.C, max(dtype.itemsize, 4))]
    if half:  # The BLAS has no 16-bit types, and sampling reads a pixel often.
        pieces.append((g.output_pixels * g.K, 4))
        if op != "dgrad" or "corners" in wanted:
            pieces.append((x, 4))
        if op == "dgrad" and "x" in wanted:
            pieces.append((x, 4))
    fixed = aligned(g.w_size, 4) if half else 0

    def cost(samples: int) -> int:
        return sum(aligned(samples * count, size) for count, size in pieces) + fixed

    limit = workspace_limit
    if limit is None:
        limit = max(plan.DEFAULT_WORKSPACE["cpu"], cost(1))
    samples = plan.largest_slice(cost, limit, max(g.N, 1))
    if not samples:
        raise ValueError(
            f"workspace_limit={workspace_limit} bytes is too small for this "
            f"deformable {op}: one sample needs {cost(1)} bytes"
        )
    return samples, cost(samples)
