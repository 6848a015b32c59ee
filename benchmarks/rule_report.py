# SPDX-License-Identifier: Apache-2.0
"""Results of `rule` for people: rows where another way is faster, and the lines."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from benchmarks.range_report import layer
from benchmarks.report import geometric_mean

LEVEL, FAR = 1.05, 1.25  # losses over which the rule is wrong, and very wrong


def fastest(row: dict) -> str:
    """Engine and configuration."""
    return min(row["us"], key=row["us"].get)


def behind(rows: list[dict]) -> list[dict]:
    """Rows whose loss is over LEVEL, the worst first."""
    lost = [row for row in rows if row.get("loss", 1) > LEVEL]
    return sorted(lost, key=lambda row: -row["loss"])


def _summed(rows: list[dict]) -> dict:
    """Of rows that were timed."""
    engines = Counter(fastest(row).split()[0] for row in rows)
    mean = geometric_mean(row["loss"] for row in rows)
    return {
        "rows": len(rows),
        "geometric_mean": round(mean, 4) if rows else None,
        "over_1.05": sum(row["loss"] > LEVEL for row in rows),
        "over_1.25": sum(row["loss"] > FAR for row in rows),
        "fastest": dict(engines.most_common()),
    }


def summary(rows: list[dict]) -> dict:
    """Means and counts of all, and by line of the rule in the order of the rule."""
    ran = [row for row in rows if "loss" in row]
    by_line: dict[int, list[dict]] = {}
    for row in ran:
        by_line.setdefault(row["line"]["index"] if row["line"] else -1, []).append(row)
    return {
        "all": {**_summed(ran), "failed": len(rows) - len(ran)},
        "lines": [
            {"line": own[0]["line"], **_summed(own)}
            for _, own in sorted(by_line.items())
        ],
    }


def show(console: Console, result: dict) -> None:
    """Prints the rows that lose, the lines, and the mean."""
    for key, value in result["environment"].items():
        console.print(f"{key} {value}", end=", ")
    console.print(f"{result['seconds_taken']} s")
    lost = behind(result["rows"])
    if lost:
        console.print(_rows(lost))
    found = result["summary"]
    if found["lines"]:
        console.print(_lines(found["lines"]))
    for row in result["rows"]:
        if "error" in row:
            text = f"{row['name']} {row['op']}: {row['error']}"
            console.print(text, markup=False)
    total = found["all"]
    if total["rows"]:
        over = total["over_1.05"]
        console.print(
            f"geometric mean of the loss {total['geometric_mean']:.3f} of "
            f"{total['rows']} rows; over {LEVEL}: {over} ({over / total['rows']:.0%}); "
            f"failed: {total['failed']}"
        )


def _rows(rows: list[dict]) -> Table:
    title = f"loss over {LEVEL}, the worst first"
    view = Table(title=title, title_justify="left")
    for heading in ("name", "layer", "op", "dtype"):
        view.add_column(heading, no_wrap=True)
    view.add_column("line", justify="right")
    for heading in ("rule", "fastest"):
        view.add_column(heading, no_wrap=True)
        view.add_column("µs", justify="right", no_wrap=True)
    view.add_column("loss", justify="right", no_wrap=True)
    for row in rows:
        cells = [row["name"], layer(row), row["op"], row["dtype"], _number(row["line"])]
        for name in (row["first"], fastest(row)):
            cells += [name, f"{row['us'][name]:.1f}"]
        view.add_row(*cells, f"{row['loss']:.2f}")
    return view


def _lines(lines: list[dict]) -> Table:
    title = "by line of the rule: time of its way over the least"
    view = Table(title=title, title_justify="left")
    view.add_column("line", justify="right")
    view.add_column("why", no_wrap=True)
    for heading in ("rows", "mean", f"over {LEVEL}", f"over {FAR}"):
        view.add_column(heading, justify="right")
    view.add_column("fastest")
    for part in lines:
        counts = [str(part[key]) for key in ("over_1.05", "over_1.25")]
        engines = part["fastest"].items()
        view.add_row(
            _number(part["line"]),
            part["line"]["why"] if part["line"] else "",
            str(part["rows"]),
            f"{part['geometric_mean']:.3f}",
            *counts,
            ", ".join(f"{name} {count}" for name, count in engines),
        )
    return view


def _number(line: dict | None) -> str:
    return str(line["index"]) if line else "-"
