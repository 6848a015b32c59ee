# SPDX-License-Identifier: Apache-2.0
"""A progress bar for the commands of this folder that take minutes."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def bar(values: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The values one by one, and on stderr how many of `total` there were.

    Without `total`, their number where they have one; else the bar has no end. Without
    the package rich, no bar.
    """
    try:
        from rich.console import Console
        from rich.progress import track
    except ModuleNotFoundError:
        yield from values
        return
    console = Console(stderr=True)
    yield from track(values, what, total, console=console, transient=True)
