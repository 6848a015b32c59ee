# SPDX-License-Identifier: Apache-2.0
"""JAX_CONVBATCH_LOG=1: a line for each convolution that is planned.

The lines have what `explain` says. They are written when JAX lowers a program, at level
INFO of the logger "jax_convbatch". The variable gives that logger a handler that writes
to stderr; without it the program's own configuration of `logging` decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from jax_convbatch import _compat
from jax_convbatch._explain.explain import rows_of
from jax_convbatch._explain.table import Row

LOGGER = logging.getLogger("jax_convbatch")
_lowering = threading.local()


def start() -> None:
    """Has lines written from now on, to stderr where the environment says so."""
    _compat.watch_lowerings(_around_lowering)
    if os.environ.get("JAX_CONVBATCH_LOG", "0") in ("", "0"):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # else handlers of the root logger repeat it


def in_jax_lax(lhs: Any, rhs: Any, reason: str) -> None:
    """The line of a convolution that `jax.lax` traces itself."""
    if LOGGER.isEnabledFor(logging.INFO):
        x, w = ("x".join(map(str, a.shape)) for a in (lhs, rhs))
        LOGGER.info("fprop %s * %s, %s: xla; %s", x, w, lhs.dtype, reason)


@contextlib.contextmanager
def _around_lowering(
    primitive: Any, platform: str, ctx: _compat.LoweringRuleContext, params: Any
) -> Iterator[None]:
    """Those primitives of which another one is composed have no line."""
    inner = getattr(_lowering, "inner", False)
    if inner or not LOGGER.isEnabledFor(logging.INFO):
        yield
        return
    eqn = SimpleNamespace(
        primitive=primitive,
        params=params,
        invars=[SimpleNamespace(aval=aval) for aval in ctx.avals_in],
        outvars=[SimpleNamespace(aval=aval) for aval in ctx.avals_out],
    )
    for row in rows_of(eqn, platform):
        LOGGER.info("%s", _line(row))
    _lowering.inner = True
    try:
        yield
    finally:
        _lowering.inner = False


def _line(row: Row) -> str:
    """Such as "fprop 8x56x56x64 * ..., float32: cudnn by rule, 2048 bytes; why"."""
    chosen = f"{row.engine} by {row.source}"
    if row.workspace_bytes:
        chosen += f", {row.workspace_bytes} bytes"
    return f"{row.op} {row.geometry}, {row.dtype}: {chosen}; {row.reason}"
