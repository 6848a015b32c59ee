"""A policy for `jax.checkpoint` that knows this package's convolutions."""

from __future__ import annotations

from typing import Any

from jax_convbatch import deform_forward, deform_primitives, fused, primitives


def convs_saveable(prim: Any, *_: Any, **__: Any) -> bool:
    """A policy for `jax.checkpoint`: results of convolutions are kept.

    `jax.checkpoint_policies.dots_saveable` keeps what matrix products and
    `jax.lax`'s convolutions give, and knows no others. This one keeps what `conv`,
    `conv_general_dilated`, `conv_transpose`, `conv_bias_act` and `deform_conv` give.
    Both together are what `dots_saveable` alone is to a network of `jax.lax`:

        policy = jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_saveable, jax_convbatch.convs_saveable
        )
        jax.checkpoint(block, policy=policy)

    What runs as `jax.lax` (integers, complex numbers, `algorithm="xla"`) is for
    `dots_saveable` to keep.

    Args:
      prim: the operation that JAX asks about. Its operands and parameters follow,
        which do not matter here.

    Returns:
      Whether backward may use its results instead of computing them again.
    """
    return prim in (
        *primitives.PRIMITIVES.values(),
        fused.layer_p,
        deform_forward.forward_p,
        deform_primitives.fprop_p,
    )
