# SPDX-License-Identifier: Apache-2.0
"""What modules declare when they are imported, and JAX is told once by `register_all`.

So the import of a module changes nothing outside of it, and all that this package does
to JAX begins in one place, `jax_convbatch/_register.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")
_declared: list[Callable[[], object]] = []


def declared(register: Callable[P, object]) -> Callable[P, None]:
    """`register`, whose calls are kept for `register_all`."""

    @functools.wraps(register)
    def keep(*args: P.args, **kwargs: P.kwargs) -> None:
        _declared.append(functools.partial(register, *args, **kwargs))

    return keep


def register_all() -> None:
    """Makes the calls that were kept."""
    while _declared:
        _declared.pop(0)()
