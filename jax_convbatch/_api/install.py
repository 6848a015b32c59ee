# SPDX-License-Identifier: Apache-2.0
"""install, uninstall: ours in the place of `jax.lax`'s convolutions, and back again."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import jax

from jax_convbatch import _compat
from jax_convbatch._api.stand_ins import STAND_INS

# They keep functions of `jax.lax`, as the default of a layer's argument for one.
LIBRARIES = ("flax", "equinox", "haiku")


@dataclass(frozen=True, repr=False)
class Installation:
    """What `install` did. Used as a context manager, it is undone at the end.

    Attributes:
      replaced: names of the functions that were replaced, such as
        "jax.lax.conv_transpose".
      reason: why nothing was replaced, or "".
    """

    replaced: tuple[str, ...]
    reason: str = ""
    _was_installed: bool = field(default=False)

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._was_installed:
            uninstall()

    def __repr__(self) -> str:
        if self.reason:
            return f"replaced nothing: {self.reason}"
        return "\n  ".join(["replaced:", *self.replaced])


def install() -> Installation:
    """Replaces the convolutions of `jax.lax` with those of this package.

    This covers `conv`, `conv_general_dilated`, `conv_transpose` and
    `conv_with_general_padding` of `jax.lax`, and the references to them that Flax,
    Equinox and Haiku keep. The libraries may be imported before or after. Arguments,
    results and errors stay those of `jax.lax`. Calls that no engine covers run in
    `jax.lax`. Functions under `jax.jit` are traced anew.

    It does not reach names in your own modules (`from jax.lax import conv`), objects
    that keep the function they were made with (a `flax.nnx.Conv` made earlier), and
    what JAX calls within itself (`jax.numpy.convolve`).

    With JAX_CONVBATCH=off in the environment, it replaces nothing.

    Returns:
      An `Installation`, which lists what was replaced. Used as a context manager, it
      calls `uninstall` at the end, unless `install` was in effect before.

    Raises:
      ValueError: JAX_CONVBATCH is neither "on" nor "off".

    Example:
      >>> jax_convbatch.install()
      replaced:
        jax.lax.conv
        jax.lax.conv_general_dilated
        jax.lax.conv_transpose
        jax.lax.conv_with_general_padding
      >>> jax_convbatch.uninstall()
      >>> with jax_convbatch.install():
      ...     y = jax.lax.conv(x, w, (1, 1), "SAME")
    """
    switch = os.environ.get("JAX_CONVBATCH", "")
    if switch not in ("", "on", "off"):
        raise ValueError(f"JAX_CONVBATCH must be 'on' or 'off', got {switch!r}")
    before = _compat.installed.value
    if switch == "off":
        return Installation((), "JAX_CONVBATCH=off is in the environment", before)
    replaced = tuple(_swap(_compat.lax_convs, STAND_INS))
    _compat.installed.set_global(True)
    why_not = "" if replaced else "it was installed before"
    return Installation(replaced, why_not, before)


def uninstall() -> None:
    """Undoes `install`: `jax.lax` and the libraries have their own functions again.

    Objects that were made in between, such as a `flax.nnx.Conv`, run `jax.lax` again
    too. Without `install` before it, nothing happens.

    Example:
      >>> jax_convbatch.install()
      >>> jax_convbatch.uninstall()
    """
    _compat.installed.set_global(False)
    for _ in _swap(STAND_INS, _compat.lax_convs):
        pass


def _swap(
    old: dict[str, Callable[..., Any]], new: dict[str, Callable[..., Any]]
) -> Iterator[str]:
    """Puts functions of `new` where those of `old` are kept, and names these places."""
    new_of = {id(old[name]): new[name] for name in old}
    for name in old:
        if getattr(jax.lax, name) is old[name]:
            setattr(jax.lax, name, new[name])
            yield f"jax.lax.{name}"
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if _is_of_library(name) and module is not None:
            yield from _swap_in(module, name, new_of, seen)


def _is_of_library(module: object) -> bool:
    return isinstance(module, str) and module.split(".")[0] in LIBRARIES


def _swap_in(
    owner: Any, path: str, new_of: dict[int, Callable[..., Any]], seen: set[int]
) -> Iterator[str]:
    """In a module or a class, its classes, and the defaults of its functions."""
    for key, value in list(vars(owner).items()):
        if id(value) in new_of:
            setattr(owner, key, new_of[id(value)])
            yield f"{path}.{key}"
        elif id(value) not in seen and isinstance(value, (type, FunctionType)):
            seen.add(id(value))
            if not _is_of_library(value.__module__):
                continue
            name = f"{value.__module__}.{value.__qualname__}"
            if isinstance(value, type):
                yield from _swap_in(value, name, new_of, seen)
            else:
                yield from _swap_defaults(inspect.unwrap(value), name, new_of)


def _swap_defaults(
    function: Any, path: str, new_of: dict[int, Callable[..., Any]]
) -> Iterator[str]:
    if not isinstance(function, FunctionType):
        return
    named = function.__kwdefaults__ or {}
    for key, value in named.items():
        if id(value) in new_of:
            named[key] = new_of[id(value)]
            yield f"{path}({key}=)"
    defaults = function.__defaults__ or ()
    code = function.__code__
    keys = code.co_varnames[: code.co_argcount][-len(defaults) :]
    found = [key for key, v in zip(keys, defaults, strict=False) if id(v) in new_of]
    if found:
        function.__defaults__ = tuple(new_of.get(id(v), v) for v in defaults)
        yield from (f"{path}({key}=)" for key in found)
