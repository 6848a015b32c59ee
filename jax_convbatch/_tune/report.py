# SPDX-License-Identifier: Apache-2.0
"""What `tune` shows: how far it is, and what it found."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from jax_convbatch._explain.table import aligned

BAR = 24  # characters
HEADINGS = ("op", "geometry", "dtype", "fastest", "us", "untuned us", "")


@dataclass(frozen=True)
class Row:
    """What `tune` found for one convolution.

    Attributes:
      op, geometry, dtype: as in `explain`.
      engine, config: the fastest.
      microseconds: the time of the fastest.
      default_microseconds: the time of what would run without tuning.
    """

    op: str
    geometry: str
    dtype: str
    engine: str
    config: str
    microseconds: float
    default_microseconds: float

    @property
    def way(self) -> str:
        """The engine and its configuration."""
        return f"{self.engine} {self.config}".strip()

    @property
    def is_faster(self) -> bool:
        """Whether tuning changes what runs."""
        return self.microseconds < self.default_microseconds

    def __str__(self) -> str:
        return (
            f"{self.op}  {self.geometry}  {self.dtype}  {self.way}  "
            f"{self.microseconds:.1f} us, untuned {self.default_microseconds:.1f} us"
        )


class Tuned(tuple[Row, ...]):
    """A tuple of rows that prints as a table; `path` is the file that keeps them."""

    path: Path | None = None

    def __str__(self) -> str:
        if not self:
            return "no convolutions that could be tuned"
        cells = (
            (
                *(row.op, row.geometry, row.dtype, row.way),
                *(f"{row.microseconds:.1f}", f"{row.default_microseconds:.1f}"),
                "changed" if row.is_faster else "",
            )
            for row in self
        )
        changed = sum(row.is_faster for row in self)
        total = f"{changed} of {len(self)} changed; kept in {self.path}"
        return f"{aligned(HEADINGS, cells)}\n{total}"

    __repr__ = __str__


class Progress:
    """How far `tune` is, on stderr.

    A terminal shows a bar with the time that is left; elsewhere each convolution has a
    line. Use it as a context.
    """

    def __init__(self, shown: bool = True, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = shown
        self._is_terminal = self._stream.isatty()
        self._start = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._shown and self._is_terminal:
            self._write("\r\x1b[K")

    def compiling(self, programs: Collection[Future[Any]]) -> None:
        """Waits until all programs are compiled."""
        if not self._is_terminal:
            self._write(f"tune: compiling {len(programs)} programs\n")
        for done, _ in enumerate(as_completed(programs), 1):
            self._bar(done, len(programs), "compiling")
        self._start = time.monotonic()  # of what is measured

    def measured(self, row: Row, done: int, total: int) -> None:
        """Shows what was found for number `done` of `total` convolutions."""
        if not self._is_terminal:
            self._write(f"tune: {done}/{total}  {row}\n")
        self._bar(done, total, str(row))

    def _bar(self, done: int, total: int, text: str) -> None:
        if not self._is_terminal:
            return
        left = (time.monotonic() - self._start) / done * (total - done)
        bar = ("=" * (BAR * done // total)).ljust(BAR)
        line = f"tune [{bar}] {done}/{total}, {left:.0f} s left  {text}"
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r\x1b[K{line[:width]}")

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()
