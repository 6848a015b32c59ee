# SPDX-License-Identifier: Apache-2.0
"""A call that XLA's partitioner splits over devices, known by what it does.

JAX's `custom_partitioning` knows a call by an address: no cache of compiled programs
finds it again, and each of a network's layers is traced and lowered anew when its
program is partitioned. The name of a call here is a digest of all that it depends on,
so that those of one name are lowered once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from jax_convbatch import _compat
from jax_convbatch._native import native
from jax_convbatch._select import choices
from jax_convbatch._version import __version__


def partitioned_call(
    fun: Callable[..., Any],
    partition: Callable[..., Any],
    sharding_rule: str,
    of: Any,
    **kinds: Any,
) -> Callable[..., Any]:
    """`fun`, or on each device what `partition` makes of it.

    Args:
      fun: of arrays, gives an array or a list of them.
      partition: (mesh, shapes of the operands, of the results) -> (mesh, what a
        device runs, sharding of each result, of each operand), the last two as
        `fun` has results and operands.
      sharding_rule, kinds: Shardy's, as `custom_partitioning.def_partition` has them.
      of: all that `partition` depends on besides its arguments: plain values, and
        functions that close over nothing.
    """
    whole = custom_partitioning(fun)
    # Decoded shardings are ones of the user's mesh, which does not have them all.
    whole.def_partition(
        partition, sharding_rule=sharding_rule, decode_shardings=False, **kinds
    )
    described = re.sub(r" at 0x[0-9a-f]+", "", repr(of))
    assert "<locals>" not in described, described

    def call(*arrays: jax.Array) -> Any:
        traced, shapes = jax.make_jaxpr(whole, return_shape=True)(*arrays)
        (eqn,) = traced.eqns
        parts = (__version__, choices.digest(), described, str(traced))
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        title = native.title(eqn.params["call"].jaxpr, "conv_partitioned")
        results = _compat.partitioned_p.bind(
            *arrays, name=digest[:32], title=title, **eqn.params
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return call
