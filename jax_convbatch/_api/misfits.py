# SPDX-License-Identifier: Apache-2.0
"""Why x and w do not fit each other, in terms of x and w.

`jax.lax` decides what is refused. It calls x and w lhs and rhs; these words are for
functions whose users do not know those names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jax_convbatch._api.arguments import CHANNELS_LAST


@contextlib.contextmanager
def named(
    x: jax.Array,
    w: jax.Array,
    dimension_numbers: Any,
    groups: int = 1,
    transpose_kernel: bool | None = None,
) -> Iterator[None]:
    """What is refused within because x and w do not fit is refused in their names.

    Args:
      x, w, dimension_numbers, groups: of a convolution.
      transpose_kernel: of a transposed convolution, whether C and K of w have each
        other's place.

    Raises:
      ValueError: channels that do not fit. TypeError: dtypes that differ.
      Anything else that is raised within, as it is.
    """
    try:
        yield
    except (TypeError, ValueError):
        problem: Exception | None = _dtypes(x, w)
        if problem is None:
            problem = _channels(x, w, dimension_numbers, groups, transpose_kernel)
        if problem is None:
            raise
        raise problem from None


def _dtypes(x: jax.Array, w: jax.Array) -> TypeError | None:
    if x.dtype == w.dtype:
        return None
    floats = [jnp.issubdtype(a.dtype, jnp.floating) for a in (x, w)]
    cast = {
        (False, True): "pass x.astype(w.dtype)",
        (True, False): "pass w.astype(x.dtype)",
    }.get((floats[0], floats[1]), "cast one of them")
    return TypeError(
        f"x and w must have one dtype, got {x.dtype} and {w.dtype}; {cast}"
    )


def _channels(
    x: jax.Array, w: jax.Array, numbers: Any, groups: int, transpose_kernel: bool | None
) -> ValueError | None:
    try:
        specs = jax.lax.conv_dimension_numbers(x.shape, w.shape, numbers)
    except (TypeError, ValueError):
        return None  # which is about the numbers, and says so
    at, (outs, ins) = specs.lhs_spec[1], specs.rhs_spec[:2]
    if transpose_kernel:
        outs, ins = ins, outs
    C, K, wanted = x.shape[at], w.shape[outs], w.shape[ins]
    if groups < 1:
        return ValueError(f"groups must be at least 1, got {groups}")
    places = (
        f"x {tuple(x.shape)} has its channels at axis {at}, w {tuple(w.shape)} its "
        f"input channels at axis {ins}"
    )
    if C % groups:
        problem = f"groups={groups} must divide the {C} channels of x; {places}"
    elif wanted * groups != C:
        of = f" ({C} in {groups} groups)" if groups > 1 else ""
        problem = (
            f"w must have {C // groups} input channels{of}, got {wanted}; {places}"
        )
    elif K % groups:
        problem = f"groups={groups} must divide the {K} output channels of w"
    else:
        return None
    if transpose_kernel is False and K == C:
        hint = (
            ". If w is the filter of the convolution that this one transposes, pass "
            "transpose_kernel=True"
        )
    elif groups == wanted == 1 and K % C == 0:
        hint = f". For a depthwise convolution pass groups={C}"
    elif groups == C == wanted and K == 1:
        hint = f". The filter of a depthwise convolution has axes of 1 and {C} there"
    elif groups > 1 and wanted == C and C % groups == 0:
        hint = f". It is the filter of groups=1; of {groups} it has axes of "
        hint += f"{C // groups} and {K} there"
    else:
        hint = _other_order(x, w, numbers, groups, transpose_kernel)
    return ValueError(problem + hint)


def _other_order(
    x: jax.Array, w: jax.Array, numbers: Any, groups: int, transpose_kernel: bool | None
) -> str:
    """The dimension numbers that would fit, where those of channels last do not."""
    rank = len(x.shape) - 2
    if rank < 1 or numbers != CHANNELS_LAST.get(rank) or transpose_kernel:
        return ""
    space = "DHW"[3 - rank :]
    last, first = f"N{space}C", f"NC{space}"
    for order, C, letters, ins in (
        (first, x.shape[1], f"{space}IO", w.shape[-2]),
        (first, x.shape[1], f"OI{space}", w.shape[1]),
        (last, x.shape[-1], f"OI{space}", w.shape[1]),
    ):
        if ins * groups == C:
            return (
                f". They fit as {order} and {letters}: pass "
                f"dimension_numbers={(order, letters, order)}"
            )
    return ""
