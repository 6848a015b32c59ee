# SPDX-License-Identifier: Apache-2.0
"""Two builds of the native module, one beside the other: is the new one as fast?

    python -m benchmarks compare OLD NEW [--tables resnet50,zoo,...] [--rows WORD,...]
                                         [--platform cuda] [--limit S] [--resume]

OLD and NEW are builds of the module (`_cuda.abi3.so`), both run by this package's
Python; or folders with a `jax_convbatch` of their own and its module in it. Each has a
process of its own, and the two take turns: a timing of one, a timing of the other, so
that what a clock or a neighbour does meets both. A ratio is the old median over the new
one. Rows below 0.97 are measured again at the end, three times as often, and what they
have then counts.

Passes if the geometric mean is 0.995 or more, no row stays below 0.97, and none fails
by NEW that runs by OLD. Prints each table's mean and the rows that are slower, with
their plans where these differ, and writes STEM.json. --limit begins no more blocks of
rows after so many seconds; --resume goes on with the rows that are there, of the same
modules.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import record, workloads
from benchmarks.cases import names
from benchmarks.compare_side import MODULES, PACKAGE
from benchmarks.report import geometric_mean

LEAST_MEAN, LEAST_ROW = 0.995, 0.97
BLOCK = 16  # rows that are compiled before the first of them is timed
AGAIN = 3  # times as many timings
TABLES = ("resnet50", "zoo", "hard", "layer", "deform", "range")
SIDES = ("old", "new")


class Side:
    """A process that times rows by one build."""

    def __init__(self, build: Path, platform: str, options: dict, share: float = 0.4):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu" if platform == "cpu" else "cuda,cpu",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(share),  # there are others
        }
        module = "benchmarks.compare_side"
        command = [sys.executable, "-m", module, str(build), platform]
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def send(self, *request) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict:
        """
        Raises:
          Lost: the process has ended.
        """
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise Lost(f"a side has ended with status {self._process.wait()}")
        return json.loads(line)

    def ask(self, *request) -> dict:
        with contextlib.suppress(BrokenPipeError):  # `receive` says so
            self.send(*request)
        return self.receive()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Lost(Exception):
    """A side that answers no more."""


def turns(sides: dict, number: int, repeats: int) -> tuple[dict, dict]:
    """What sides take for a row, timings of each, in turns; and why some failed."""
    times: dict[str, list[float]] = {}
    failed = {}
    for name, side in sides.items():
        answer = side.ask("ready", number)
        if "failed" in answer:
            failed[name] = answer["failed"]
        else:
            times[name] = []
    for repeat in range(repeats):
        # None is always the one that runs after another's pause.
        for name in list(times)[:: -1 if repeat % 2 else 1]:
            answer = sides[name].ask("time")
            if "failed" in answer:
                failed[name] = answer["failed"]
                del times[name]
            else:
                times[name].append(answer["us"])
    for side in sides.values():
        side.ask("drop", number)
    return times, failed


def measure(sides: dict, row: dict, number: int, repeats: int) -> None:
    """Adds to `row` what the two take, in turns, or what failed."""
    times, failed = turns(sides, number, repeats)
    if failed:
        row["failed"] = failed
        return
    us = {name: statistics.median(found) for name, found in times.items()}
    row["us"] = {name: round(value, 3) for name, value in us.items()}
    row["spread_us"] = {n: round(max(t) - min(t), 3) for n, t in times.items()}
    row["ratio"] = round(us["old"] / us["new"], 4)


def both(sides: dict, *request) -> dict:
    """Answers to a request that does not disturb the other side: at the same time."""
    for side in sides.values():
        side.send(*request)
    return {name: side.receive() for name, side in sides.items()}


def plans_of(sides: dict, numbers: list[int]) -> dict[int, dict]:
    """Compiles rows; of each what either side says that it runs, if they differ."""
    found = both(sides, "prepare", numbers)
    plans = {}
    for i in numbers:
        words = {name: answer["plans"][str(i)] for name, answer in found.items()}
        plans[i] = words if len(set(words.values())) > 1 else {}
    return plans


def slow(rows: list[dict]) -> list[dict]:
    """The slowest first."""
    below = [row for row in rows if row.get("ratio", 1) < LEAST_ROW]
    return sorted(below, key=lambda row: row["ratio"])


def broken(rows: list[dict]) -> list[dict]:
    """What runs by the old build and not by the new one."""
    return [row for row in rows if row.get("failed", {}).keys() == {"new"}]


def summary(rows: list[dict]) -> dict:
    """Means and whether it passes."""
    means = {}
    for table in dict.fromkeys(row["table"] for row in rows):
        ratios = [r["ratio"] for r in rows if r["table"] == table and "ratio" in r]
        means[table] = {"rows": len(ratios), "mean": _rounded(geometric_mean(ratios))}
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    mean = geometric_mean(ratios)
    faults = []
    if not mean >= LEAST_MEAN:
        faults.append(f"the mean of {len(ratios)} rows is {mean:.4f}")
    if below := slow(rows):
        faults.append(f"{len(below)} rows are below {LEAST_ROW}")
    if failing := broken(rows):
        faults.append(f"{len(failing)} rows fail by the new build alone")
    return {
        "rows": len(ratios),
        "mean": _rounded(mean),
        "failed": sum("failed" in row for row in rows),
        "tables": means,
        "passes": not faults,
        "faults": faults,
    }


def _rounded(mean: float) -> float | None:
    return None if math.isnan(mean) else round(mean, 4)


def compare(sides: dict, rows: list[dict], known: list, options, progress) -> None:
    """Fills `rows`, as many as time allows; those that are there stay."""
    start = time.monotonic()
    there = {(row["table"], row["name"]) for row in rows}
    todo = [i for i, row in enumerate(known) if tuple(row) not in there]
    task = progress.add_task("timing", total=len(todo))

    def timed(i: int, row: dict, repeats: int) -> dict:
        progress.update(task, description=f"{row['table']} {row['name']}")
        measure(sides, row, i, repeats)
        progress.advance(task)
        return row

    for first in range(0, len(todo), BLOCK):
        if time.monotonic() - start > options.limit:
            return
        block = todo[first : first + BLOCK]
        plans = plans_of(sides, block)
        for i in block:
            table, name = known[i]
            row = {"table": table, "name": name, "plans": plans[i]}
            rows.append(timed(i, row, options.repeats))
    again = [row for row in slow(rows) if "first_ratio" not in row]
    progress.update(task, total=len(todo) + len(again))
    places = {tuple(name): i for i, name in enumerate(known)}
    for row in again:
        i = places[row["table"], row["name"]]
        plans_of(sides, [i])
        row["first_ratio"] = row.pop("ratio")
        timed(i, row, AGAIN * options.repeats)


def show(console: Console, result: dict) -> None:
    found = result["summary"]
    view = Table(title="old time / new time")
    for heading in ("table", "rows", "geometric mean"):
        view.add_column(heading, justify="left" if heading == "table" else "right")
    every = found["tables"] | {"all": found}
    for name, of in every.items():
        mean = "-" if of["mean"] is None else f"{of['mean']:.4f}"
        view.add_row(name, str(of["rows"]), mean)
    console.print(view)
    for row in slow(result["rows"]):
        us = row["us"]
        first = f", first {row['first_ratio']:.3f}" if "first_ratio" in row else ""
        console.print(
            f"{row['ratio']:.3f}{first}: {row['table']} {row['name']}, "
            f"{us['old']} us before, {us['new']} after",
            highlight=False,
        )
        for side, plan in row["plans"].items():
            console.print(f"    {side} {plan}", highlight=False)
    for row in result["rows"]:
        for side, why in row.get("failed", {}).items():
            console.print(f"failed by {side}: {row['table']} {row['name']}: {why}")
    console.print("passes" if found["passes"] else "; ".join(found["faults"]))


def digest(build: Path, platform: str) -> str:
    """Of a module's bytes."""
    if build.is_dir():
        build = build / PACKAGE / f"{MODULES[platform]}.abi3.so"
    return hashlib.sha256(build.read_bytes()).hexdigest()[:16]


# Of the options, those that say which rows a side has, and how they are timed.
OF_ROWS = ("tables", "rows", "seed", "count", "largest", "seconds")


def add_rows(add) -> None:
    """The options of OF_ROWS but for seconds; `add`: a parser's `add_argument`."""
    every = dict.fromkeys((*TABLES, *workloads.TABLES))
    add("--tables", type=names(every), default=list(TABLES), help=", ".join(every))
    add("--rows", type=names(), default=[], help="words of names")
    add("--seed", type=int, default=0, help="of range")
    add("--count", type=int, default=6, help="draws of each family of range")
    add("--largest", type=float, default=2e9, metavar="BYTES", help="of range")


def of_rows(options: argparse.Namespace) -> dict:
    return {name: getattr(options, name) for name in OF_ROWS}


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("old", type=Path)
    add("new", type=Path)
    add_rows(add)
    add("--platform", choices=MODULES, default="cuda")
    add("--seconds", type=float, default=0.012, help="of one timing")
    add("--repeats", type=int, default=7)
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--resume", action="store_true", help="keeps the rows that are there")
    add("--out", type=Path, help="path without suffix (default: out/compare)")
    return parser.parse_args(arguments)


def kept(stem: Path, modules: dict[str, str]) -> list[dict]:
    """The rows of a file that `--resume` goes on with.

    Raises:
      SystemExit: they are of other modules.
    """
    path = record.json_path(stem)
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if found["modules"] != modules:
        raise SystemExit(f"{path} is of other modules")
    return found["rows"]


def main(arguments: list[str]) -> None:
    options = options_of(arguments)
    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    stem = options.out or Path("out") / "compare"
    builds = {"old": options.old, "new": options.new}
    modules = {name: digest(path, options.platform) for name, path in builds.items()}
    rows = kept(stem, modules) if options.resume else []
    of_side = of_rows(options) | {"engine": "auto", "dtypes": None}
    sides = {n: Side(b, options.platform, of_side) for n, b in builds.items()}
    lost, known = "", []
    try:
        found = both(sides, "rows")
        if found["old"]["rows"] != found["new"]["rows"]:
            raise SystemExit("error: the two have other rows")
        known = found["new"]["rows"]
        with (
            Progress(console=console, transient=True) as progress,
            contextlib.suppress(KeyboardInterrupt),  # keeps what there is
        ):
            compare(sides, rows, known, options, progress)
    except Lost as error:
        lost = str(error)
    finally:
        for side in sides.values():
            side.end()
    if not rows:
        raise SystemExit(f"error: no rows; {lost}")
    result = {
        "environment": found["new"]["environment"],
        "table": "compare",
        "modules": modules,
        "summary": summary(rows),
        "rows": rows,
    }
    show(console, result)
    console.print(f"wrote {record.save(result, stem)}")
    missing = len(known) - len(rows)
    if missing > 0 or lost:
        console.print(f"{len(rows)} of {len(known)} rows; --resume goes on. {lost}")
    if missing > 0 or lost or not result["summary"]["passes"]:
        raise SystemExit(1)
