# SPDX-License-Identifier: Apache-2.0
"""Results of `layers` and of `kernels` as the tables that docs have.

    python -m benchmarks markdown benchmarks/results/zoo-*.json

prints for each dtype a line for each row: microseconds of ours and of each peer for
each operation, bold where ours is not the least; and the means below. Of results of
`kernels` it prints a line for each family, of all files together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import kernels, report
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


def families(rows: list[dict], taken: dict[str, int]) -> list[str]:
    """Lines of the table of families; `taken`: how many rows take each."""
    lines = [
        "| family | lines | rows that take it | timed | mean loss | over 10% | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in kernels.summary(rows, {f: range(n) for f, n in taken.items()}):
        most = f"{line['most']:.2f}: {line['worst']}" if line["worst"] else "-"
        mean = "-" if line["mean"] is None else f"{line['mean']:.2f}"
        counts = (line["family"], line["lines"], line["rows"], line["timed"])
        cells = (*counts, mean, line["over"], most)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks markdown",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args(arguments).files
    found = [json.loads(path.read_text()) for path in files]
    rows = [row for result in found for row in result["rows"]]
    if all(result.get("table") == "kernels" for result in found):
        taken: dict[str, int] = {}
        for line in (line for result in found for line in result["summary"]):
            if line["family"] in kernels.FILES:  # others are gone since
                taken[line["family"]] = taken.get(line["family"], 0) + line["rows"]
        print("\n".join(families(rows, taken)))
        return
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        print("\n".join(table([row for row in rows if row["dtype"] == dtype])))
        print()
