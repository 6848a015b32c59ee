# SPDX-License-Identifier: Apache-2.0
"""The row of `explain` for a short causal convolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jax_convbatch._causal import lowering, primitives
from jax_convbatch._explain.table import Row
from jax_convbatch._native import targets

# Which of the operands are x and w, and products of each tap and input.
_OPERATIONS: dict[Any, tuple[int, int, int]] = {
    primitives.fprop_p: (0, 1, 1),
    primitives.tangent_p: (0, 1, 3),
    primitives.cotangent_p: (0, 1, 3),
    primitives.update_p: (1, 2, 1),
}


def is_causal(eqn: Any) -> bool:
    return eqn.primitive in _OPERATIONS


def row_of(eqn: Any, platform: str) -> Row:
    """Of an equation that `is_causal`."""
    static = eqn.params["static"]
    of_x, of_w, products = _OPERATIONS[eqn.primitive]
    x, w = eqn.invars[of_x].aval, eqn.invars[of_w].aval
    taps, dtype = w.shape[1], np.dtype(x.dtype)
    *samples, channels = x.shape
    geometry = "x".join(map(str, (*_without_sets(samples), channels)))
    geometry += f", {taps} taps"
    geometry += f", dilation {static.dilation}" if static.dilation > 1 else ""
    avals = [v.aval for v in eqn.invars]
    ids = [a for a in avals if np.issubdtype(a.dtype, np.integer)]
    reason = lowering.problem(x, taps, static.dilation, platform, *ids)
    workspace = 0
    if eqn.primitive is primitives.tangent_p:
        reason = "a tangent"
    if reason is None and eqn.primitive is primitives.cotangent_p:
        sums = targets.causal_sums(platform, x.shape, taps, static.dilation)
        workspace = sums * w.dtype.itemsize
    words = ["all gradients in one pass"] if products > 1 else []
    words += [static.activation] if static.activation != "identity" else []
    words += ["segments"] * static.segments + ["initial state"] * static.state
    return Row(
        eqn.primitive.name,
        geometry,
        dtype.name,
        "xla" if reason else "kernel",
        reason or ", ".join(words) or "one pass",
        0,
        workspace,
        "rule",
        0 if reason == "symbolic sizes" else 2 * products * taps * math.prod(x.shape),
    )


def _without_sets(sizes: list[int]) -> list[int]:
    """Sizes without the number of sets of weights, where there is one."""
    return sizes[1:] if sizes[0] == 1 else sizes
