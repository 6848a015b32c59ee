"""What `jax.export` has to be told of this package's native calls."""

from __future__ import annotations

from jax import export

from jax_convbatch import targets


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The checks to disable, so that `jax.export` writes programs with our calls.

    JAX refuses calls of other packages until they are named, because it promises
    nothing about them: a program can be read back where the same version of this
    package is installed and imported.

        exported = jax.export.export(
            step, disabled_checks=jax_convbatch.export_checks()
        )(x, w)

    On several devices each does the whole batch of such a program, since what
    splits it calls back to Python; `jax.shard_map` around the convolutions leaves
    every device its part. Symbolic sizes run in `jax.lax`.

    Returns:
      One check for each call of the native modules that are installed.
    """
    names = {name for module in targets.modules() for name in module.targets()}
    return [export.DisabledSafetyCheck.custom_call(name) for name in sorted(names)]
