"""What `jax.export` has to be told of this package's native calls."""

from __future__ import annotations

import warnings

from jax import export

from jax_convbatch import _compat, targets

_asked = False  # whether `export_checks` was called


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The checks to disable, so that `jax.export` writes programs with our calls.

    JAX refuses calls of other packages until they are named ("Cannot serialize code
    with custom calls whose targets have no compatibility guarantees"), because it
    promises nothing about them: a program can be read back where the same version of
    this package is installed and imported.

        exported = jax.export.export(
            step, disabled_checks=jax_convbatch.export_checks()
        )(x, w)

    On several devices each does the whole batch of such a program, since what
    splits it calls back to Python; `jax.shard_map` around the convolutions leaves
    every device its part. Symbolic sizes run in `jax.lax`.

    Returns:
      One check for each call of the native modules that are installed.
    """
    global _asked
    _asked = True
    names = {name for module in targets.modules() for name in module.targets()}
    return [export.DisabledSafetyCheck.custom_call(name) for name in sorted(names)]


def _warn_unless_asked(platform: str) -> None:
    """Says what JAX's error, which follows, cannot say."""
    if _asked or not targets.available(platform):
        return
    warnings.warn(
        "jax.export refuses the native calls of jax_convbatch unless they are named: "
        "jax.export.export(fn, disabled_checks=jax_convbatch.export_checks())",
        stacklevel=2,
    )


_compat.export_listeners.append(_warn_unless_asked)
