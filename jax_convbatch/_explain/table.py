# SPDX-License-Identifier: Apache-2.0
"""The table that `explain` gives: as text, in a notebook, as plain values."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

HEADINGS = ("op", "geometry", "dtype", "engine", "by", "slice", "workspace", "reason")


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in columns, a line under its headings."""
    cells = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


@dataclass(frozen=True)
class Row:
    """One convolution, or bias gradient, of a traced function.

    Attributes:
      op: "fprop", "dgrad", "wgrad", "bgrad" (the bias gradient) or "act_bgrad"
        (the activation's derivative and the bias gradient in one pass); of
        deformable convolutions "deform_fprop", "deform_dgrad" (of x, offset and
        mask) and "deform_wgrad"; "causal_conv1d", its "_cotangent" and "_update".
      geometry: sizes of x, w and y, then strides, padding, dilations and groups.
      dtype: of the operands.
      engine: what runs it; "xla" is `jax.lax`.
      reason: why this engine, and what is fused into its kernel.
      slice: samples that are processed at a time (0: all of them). For wgrad by
        "implicit_gemm" on the CPU, the number of parts in which its pixels are summed.
      workspace_bytes: memory in addition to operands and result (0 for "xla", whose
        memory XLA plans itself).
      source: who chose: "name" (the caller), "tuned" (the file that
        `jax_convbatch.tune` wrote), "table" (measurements in this package) or "rule".
      flops: two for each multiply-add in the definition of the convolution, as XLA
        counts them: padding and the zeros between inputs do not count (for deformable
        convolutions, whose taps can be anywhere, every tap counts). 0 for bias
        gradients, symbolic sizes and more than three spatial axes.
    """

    op: str
    geometry: str
    dtype: str
    engine: str
    reason: str
    slice: int
    workspace_bytes: int
    source: str
    flops: int = 0


class Explanation(tuple[Row, ...]):
    """A tuple of rows that prints as a table."""

    @property
    def flops(self) -> int:
        """The floating-point operations of all rows."""
        return sum(row.flops for row in self)

    def to_dict(self) -> dict[str, Any]:
        """`flops`, and `rows`, a list of dicts with each row's attributes, for JSON.

        `pandas.DataFrame(table.to_dict()["rows"])` is a data frame.
        """
        rows = [dataclasses.asdict(row) for row in self]
        return {"flops": self.flops, "rows": rows}

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.op,
                row.geometry,
                row.dtype,
                row.engine,
                row.source,
                str(row.slice or "-"),
                _bytes(row.workspace_bytes),
                row.reason,
            )
            for row in self
        ]

    def __str__(self) -> str:
        if not self:
            return "no convolutions"
        return aligned(HEADINGS, self._cells())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if not self:
            return "<p>no convolutions</p>"
        body = "".join(_html_row("td", cells) for cells in self._cells())
        head = _html_row("th", HEADINGS)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _html_row(tag: str, cells: tuple[str, ...]) -> str:
    style = ' style="text-align: left"'
    return (
        "<tr>"
        + "".join(f"<{tag}{style}>{html.escape(cell)}</{tag}>" for cell in cells)
        + "</tr>"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B" if count else "-"
