# SPDX-License-Identifier: Apache-2.0
"""What the import of this package does to JAX, and what it says: here, and once.

Other modules change nothing outside of them when they are imported.
"""

from __future__ import annotations

import os

from jax.extend import source_info_util

from jax_convbatch import _compat
from jax_convbatch._api import export
from jax_convbatch._explain import log

# No module that this package imports has it; for Flax layers.
from jax_convbatch._layers import channel_sums as channel_sums
from jax_convbatch._native import targets

_registered = False


def everything() -> None:
    """Gives primitives their rules and native modules their FFI targets, and warns of
    what is missing. For `__init__`, which has imported all modules; where that is
    loaded again, the warning alone."""
    global _registered
    if not _registered:
        # Messages and profiles name the user's line, as they do for jax.lax.
        source_info_util.register_exclusion(os.path.dirname(__file__))
        targets.load()
        _compat.register_all()
        _compat.export_listeners.append(export.warn_unless_asked)
        log.start()
    _registered = True
    targets.warn(stacklevel=4)  # the line that imports jax_convbatch
