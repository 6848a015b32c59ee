# SPDX-License-Identifier: Apache-2.0
"""Results of `layers` as the tables that docs have.

    python -m benchmarks markdown benchmarks/results/zoo-*.json

prints for each dtype a line for each row: microseconds of ours and of each peer for
each operation, bold where ours is not the least; and the means below.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import report
from benchmarks.cases import OPS

NAMES = {"xla": "`jax.lax`", "torch": "cuDNN in a graph", "onednn": "oneDNN"}


def cell(row: dict | None, sides: list[str]) -> str:
    """The times of one operation."""
    if row is None:
        return "-"
    timed = report.timed(row)
    text = " / ".join(
        f"{timed[name]['median_us']:.1f}" if name in timed else "-" for name in sides
    )
    ratio = report.ratio(row, timed[sides[0]]) if sides[0] in timed else None
    return f"**{text}**" if ratio is not None and ratio < 1 else text


def table(rows: list[dict]) -> list[str]:
    """Lines of the table of rows of one dtype."""
    sides = list(dict.fromkeys(name for row in rows for name in report.timed(row)))
    ours = [name for name in sides if name not in NAMES]
    sides = ours[:1] + [name for name in NAMES if name in sides]
    heads = " / ".join(["ours", *(NAMES[name] for name in sides[1:])])
    found = {(row["name"], row["batch"], row["op"]): row for row in rows}
    ops = [op for op in OPS if any(row["op"] == op for row in rows)]
    lines = [
        f"{rows[0]['dtype']}, µs, {heads}:",
        "",
        "| layer | batch | " + " | ".join(ops) + " |",
        "|---" * (2 + len(ops)) + "|",
    ]
    for name, batch in dict.fromkeys(key[:2] for key in found):
        cells = [cell(found.get((name, batch, op)), sides) for op in ops]
        lines.append(f"| {name} | {batch} | " + " | ".join(cells) + " |")
    return [*lines, "", *(f"- {line}" for line in report.means(rows))]


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks markdown",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args(arguments).files
    rows = [row for path in files for row in json.loads(path.read_text())["rows"]]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        print("\n".join(table([row for row in rows if row["dtype"] == dtype])))
        print()
