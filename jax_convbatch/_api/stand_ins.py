# SPDX-License-Identifier: Apache-2.0
"""What `install` puts in the place of the convolutions of `jax.lax`.

Each has the signature and the words of the function that it stands for, and runs
that function where `install` is not in force: a layer that kept it is a stock layer
again after `uninstall`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from jax_convbatch import _compat
from jax_convbatch._api.conv import conv_general_dilated as ours

# Keywords of ours, which `jax.lax` refuses.
_MORE = {"algorithm", "workspace_limit"}


# Not its name: functions are pickled by name, and this one is to be found here.
@functools.wraps(_compat.lax_conv, assigned=("__doc__",))
def conv_general_dilated(*args: Any, **kwargs: Any) -> Any:
    if not _compat.installed.value or _MORE & kwargs.keys():
        return _compat.lax_conv(*args, **kwargs)
    return ours(*args, **kwargs)


def _ending_in_ours(name: str) -> Callable[..., Any]:
    """The function of `jax.lax` with that name; its last call is of the one above."""
    stock = _compat.lax_convs[name]
    names = {**stock.__globals__, "conv_general_dilated": conv_general_dilated}
    new = types.FunctionType(stock.__code__, names, name, stock.__defaults__)
    new.__module__ = __name__
    return functools.wraps(stock, assigned=("__doc__",))(new)


conv = _ending_in_ours("conv")
conv_transpose = _ending_in_ours("conv_transpose")
conv_with_general_padding = _ending_in_ours("conv_with_general_padding")

STAND_INS: dict[str, Callable[..., Any]] = {
    "conv": conv,
    "conv_general_dilated": conv_general_dilated,
    "conv_transpose": conv_transpose,
    "conv_with_general_padding": conv_with_general_padding,
}
