# SPDX-License-Identifier: Apache-2.0
"""Plans of what the CUDA module has for Hopper GPUs besides the three operations."""

from __future__ import annotations

import functools
from typing import Any

from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry


def column_plan(op: str, geometry: ConvGeometry, dtype: str, samples: int) -> Any:
    """How the Hopper kernels multiply a deformable convolution's sampled columns.

    Args:
      op, geometry, dtype: as in `targets.implicit_gemm_plans`.
      samples: how many of the batch at a time.

    Returns:
      {"workspace": bytes, "adds_bias": whether fprop adds one, ...}, or None where
      cuBLAS multiplies, which does not depend on the batch.
    """
    module, gpu = targets.cuda()
    if module is None or gpu.capability != targets.HOPPER:
        return None
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    return module.implicit_gemm_column_plan(
        op, fields, dtype, samples, gpu.multiprocessors
    )


def layer_config(
    geometry: ConvGeometry, dtype: str, config: str, plain: bool, signs: bool
) -> str:
    """The configuration that fprop by `config` runs as with an epilogue.

    Args:
      geometry, dtype: as in `targets.implicit_gemm_plans`, which has `config`.
      plain: whether the epilogue is a bias and relu at most.
      signs: whether it keeps those of its result.
    """
    module, gpu = targets.cuda()
    assert module is not None
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    return module.implicit_gemm_layer_config(
        fields, dtype, config, plain, signs, gpu.multiprocessors
    )


def norm_act_plan(
    op: str, geometry: ConvGeometry, dtype: str, activation: str
) -> dict[str, Any] | None:
    """How one kernel norms, activates and convolves on JAX's first GPU, or None.

    Args:
      op: "fprop", or "dgrad" for the gradient.
      geometry, dtype: as in `targets.implicit_gemm_plans`.
      activation: its name.

    Returns:
      {"tile_n": channels of a tile, "workspace": bytes for sums, "preferred": whether
      it is faster than a pass and a convolution, ...}.
    """
    module, gpu = targets.cuda()
    if module is None or gpu.capability != targets.HOPPER:
        return None
    return _norm_act_plan(op, geometry, dtype, activation, gpu.multiprocessors)


@functools.lru_cache(maxsize=4096)
def _norm_act_plan(
    op: str, geometry: ConvGeometry, dtype: str, activation: str, count: int
) -> dict[str, Any] | None:
    module, _ = targets.cuda()
    assert module is not None
    fields = {name: int(value) for name, value in geometry.attribute().items()}
    return module.implicit_gemm_norm_act_plan(op, fields, dtype, activation, count)
