# SPDX-License-Identifier: Apache-2.0
"""What `jax.export` has to be told of this package's native calls."""

from __future__ import annotations

import sys
import warnings

from jax import export

from jax_convbatch._native import targets

_asked = False  # whether `export_checks` was called


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The checks to disable, so that `jax.export` accepts this package's native calls.

    JAX makes no promise about calls of other packages, and refuses them until they are
    named ("Cannot serialize code with custom calls whose targets have no compatibility
    guarantees"). An exported program runs where the same version of this package is
    installed and imported.

        exported = jax.export.export(
            step, disabled_checks=jax_convbatch.export_checks()
        )(x, w)

    In an exported program for several devices, each device computes the whole batch,
    because partitioning calls back to Python. Inside `jax.shard_map`, each device
    computes its own part. Symbolic sizes run in `jax.lax`.

    Returns:
      One check for each native call of the installed modules.
    """
    global _asked
    _asked = True
    names = {name for module in targets.modules() for name in module.targets()}
    return [export.DisabledSafetyCheck.custom_call(name) for name in sorted(names)]


def warn_unless_asked(platform: str) -> None:
    """Says what JAX's error, which follows, cannot say."""
    if _asked or not targets.available(platform):
        return
    warnings.warn(
        "jax.export refuses the native calls of jax_convbatch unless they are named: "
        "jax.export.export(fn, disabled_checks=jax_convbatch.export_checks())",
        stacklevel=_stacklevel(),
    )


def _stacklevel() -> int:
    """That of the user's line, for a warning by the function that calls this."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and _is_not_the_users(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_not_the_users(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jax_convbatch", "contextlib")
