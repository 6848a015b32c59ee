# SPDX-License-Identifier: Apache-2.0
"""What users write for sizes, strides and padding, in the form that `jax.lax` takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

CHANNELS_LAST = {
    0: ("NC", "IO", "NC"),
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


def check_arrays(**arrays: Any) -> None:
    """
    Raises:
      TypeError: one that is no array.
    """
    for name, a in arrays.items():
        if not (hasattr(a, "shape") and hasattr(a, "dtype")):
            raise TypeError(f"{name} must be an array, got {type(a).__name__}")


def spatial_axes(x: Any, w: Any) -> int:
    """How many x has.

    Raises:
      TypeError: x or w that is no array.
      ValueError: x without batch and channels, w with another number of axes.
    """
    check_arrays(x=x, w=w)
    if len(x.shape) < 2:
        raise ValueError(f"x must be [N, *spatial, C], got shape {tuple(x.shape)}")
    if len(w.shape) != len(x.shape):
        # Most often a sample without its batch axis.
        one_less = len(x.shape) + 1 == len(w.shape)
        hint = "; x[None] has a batch axis" if one_less else ""
        raise ValueError(
            f"w must have as many axes as x, {len(x.shape)}, got shape "
            f"{tuple(w.shape)}{hint}"
        )
    return len(x.shape) - 2


def check_int(name: str, value: int) -> None:
    """
    Raises:
      TypeError: a number of groups that is no int.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {shown(name, value)}")


def shown(name: str, value: Any) -> str:
    """The value of an argument in a message. What is not static, `jax.jit` traces."""
    if any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(value)):
        return f"a traced value; under jax.jit, name {name!r} in static_argnames"
    return repr(value)


def per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """An int for every spatial axis, or the sequence given.

    Raises:
      ValueError: a sequence of another length, or a number that is not positive.
      TypeError: no int and no sequence of them.
    """
    wanted = f"{name} must be an int or {rank} ints, one for each spatial axis, got "
    try:
        one = isinstance(value, (int, np.integer))
        values = (int(value),) * rank if one else tuple(map(operator.index, value))
    except TypeError:
        raise TypeError(f"{wanted}{shown(name, value)}") from None
    if len(values) != rank:
        raise ValueError(f"{wanted}{values}")
    if any(v < 1 for v in values):
        raise ValueError(f"{name} must be positive, got {value!r}")
    return values


OF_ZEROS = ("SAME", "SAME_LOWER", "VALID")


def conv_padding(padding: Any, rank: int, names: Any = OF_ZEROS) -> Any:
    """Padding as `jax.lax` takes it: one of `names`, or (low, high) for every axis.

    Raises:
      ValueError: another string, or another number of ints and pairs than there are
        axes.
      TypeError: neither a string, an int, nor a sequence of ints and pairs.
    """
    if isinstance(padding, (int, np.integer)):
        return ((int(padding), int(padding)),) * rank
    wanted = (
        f"padding must be {', '.join(map(repr, names))}, an int, or an int or a "
        f"(low, high) pair for each of the {rank} spatial axes, got "
        f"{shown('padding', padding)}"
    )
    if isinstance(padding, str):
        if padding.upper() not in names:
            raise ValueError(wanted)
        return padding.upper()
    try:
        pairs = tuple(
            (int(p), int(p)) if isinstance(p, (int, np.integer)) else tuple(p)
            for p in padding
        )
    except TypeError:
        raise TypeError(wanted) from None
    if len(pairs) != rank or any(len(p) != 2 or has_names(p) for p in pairs):
        raise ValueError(wanted)
    return pairs


def has_names(pair: Sequence[Any]) -> bool:
    return any(isinstance(n, str) for n in pair)


def channels_last(rank: int, dimension_numbers: Any = None) -> tuple[str, str, str]:
    """The dimension numbers given, or channels-last ones.

    Raises:
      ValueError: more than three spatial axes and no dimension numbers.
    """
    if dimension_numbers is not None:
        return dimension_numbers
    if rank not in CHANNELS_LAST:
        raise ValueError(
            f"x has {rank} spatial axes; give dimension_numbers beyond three"
        )
    return CHANNELS_LAST[rank]


def lax_arguments(
    x: Any,
    w: Any,
    *,
    strides: Any,
    padding: Any,
    input_dilation: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    dimension_numbers: Any,
    preferred_element_type: Any = None,
    read_padding: Callable[[Any, int], Any] = conv_padding,
) -> dict[str, Any]:
    """The keywords of `jax.lax.conv_general_dilated` for what `conv` takes.

    `read_padding`: makes a padding of what is given and the number of spatial axes.

    Raises:
      ValueError, TypeError: of those functions above.
    """
    rank = spatial_axes(x, w)
    check_int("groups", groups)
    numbers = channels_last(rank, dimension_numbers)
    return dict(
        window_strides=per_axis("strides", strides, rank),
        padding=read_padding(padding, rank),
        lhs_dilation=per_axis("input_dilation", input_dilation, rank),
        rhs_dilation=per_axis("dilation", dilation, rank),
        dimension_numbers=numbers,
        feature_group_count=groups,
        preferred_element_type=preferred_element_type,
    )


def sizes(name: str, shape: Sequence[int]) -> tuple[Any, ...]:
    """Sizes that are ints; symbolic ones as they are."""
    try:
        return tuple(
            n if jax.export.is_symbolic_dim(n) else operator.index(n) for n in shape
        )
    except TypeError:
        of = getattr(shape, "shape", None)
        got = shown(name, shape)
        if of is not None:
            got = f"an array of shape {of}; pass its shape"
        raise TypeError(f"{name} must be a sequence of ints, got {got}") from None
