# SPDX-License-Identifier: Apache-2.0
"""A policy for `jax.checkpoint` that knows this package's convolutions."""

from __future__ import annotations

from typing import Any

from jax_convbatch._deform import forward as deform_forward
from jax_convbatch._deform import primitives as deform_primitives
from jax_convbatch._layers import fused, norm_act
from jax_convbatch._primitives import primitives


def convs_saveable(prim: Any, *_: Any, **__: Any) -> bool:
    """A policy for `jax.checkpoint`: results of convolutions are kept.

    `jax.checkpoint_policies.dots_saveable` keeps the results of matrix products and of
    the convolutions of `jax.lax` only. This policy keeps the results of `conv`,
    `conv_general_dilated`, `conv_transpose`, `conv_bias_act`, `norm_act_conv` and
    `deform_conv`. Use both together where a network of `jax.lax` has `dots_saveable`:

        policy = jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_saveable, jax_convbatch.convs_saveable
        )
        jax.checkpoint(block, policy=policy)

    Calls that run in `jax.lax` (integers, complex numbers, `algorithm="xla"`) are kept
    by `dots_saveable`.

    Args:
      prim: the operation that JAX asks about. Its operands and parameters follow; they
        are ignored.

    Returns:
      Whether the results are kept for the backward pass.
    """
    return prim in (
        *primitives.PRIMITIVES.values(),
        fused.layer_p,
        norm_act.norm_act_p,
        deform_forward.forward_p,
        deform_primitives.fprop_p,
    )
