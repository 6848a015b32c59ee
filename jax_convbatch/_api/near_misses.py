# SPDX-License-Identifier: Apache-2.0
"""A keyword that a function does not have is refused with the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# What jax.lax, Flax, Haiku, Equinox, PyTorch and TensorFlow call our arguments.
_OTHER_NAMES = {
    "act": "activation",
    "activation_fn": "activation",
    "b": "bias",
    "channel_dim": "channel_axis",
    "data_format": "dimension_numbers",
    "dtype": "preferred_element_type",
    "engine": "algorithm",
    "feature_group_count": "groups",
    "filter": "w",
    "gamma": "scale",
    "input": "x",
    "input_shape": "x_shape",
    "input_size": "x_shape",
    "initial_states": "initial_state",
    "inputs": "x",
    "kernel": "w",
    "kernel_dilation": "dilation",
    "kernel_shape": "w_shape",
    "lhs": "x",
    "lhs_dilation": "input_dilation",
    "out_dtype": "preferred_element_type",
    "rate": "dilation",
    "rhs": "w",
    "return_final_states": "return_final_state",
    "rhs_dilation": "dilation",
    "seq_idx": "segment_ids",
    "shortcut": "residual",
    "skip": "residual",
    "state": "initial_state",
    "weight": "w",
    "weight_size": "w_shape",
    "weights": "w",
    "window_strides": "strides",
}


def with_hints(
    elsewhere: Mapping[str, str] = {},
    instead: Mapping[str, str] = {},
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: other keywords than the function's own are refused with a hint.

    Args:
      elsewhere: keywords that another function takes, and that function's name.
      instead: keywords that no function takes, and what to do.

    Raises:
      TypeError: by the function that is decorated: an unknown keyword.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        names = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if not kwargs.keys() <= names.keys():
                unknown = next(name for name in kwargs if name not in names)
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument "
                    f"{unknown!r}; "
                    + (instead.get(unknown) or _hint(unknown, names, elsewhere))
                )
            return function(*args, **kwargs)

        return checked

    return decorate


def _hint(unknown: str, names: Collection[str], elsewhere: Mapping[str, str]) -> str:
    if unknown in elsewhere:
        return f"{elsewhere[unknown]} takes {unknown!r}"
    meant = _OTHER_NAMES.get(unknown.lower())
    if meant not in names:
        close = difflib.get_close_matches(unknown.lower(), names, 1)
        meant = close[0] if close else None
    if meant:
        return f"did you mean {meant!r}?"
    return f"its arguments are {', '.join(names)}"
