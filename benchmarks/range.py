# SPDX-License-Identifier: Apache-2.0
"""Random convolutions of twelve families, beside jax.lax and cuDNN.

    python -m benchmarks range --families video,audio --seed 0 --count 6

draws layers of networks that people run (`families.py`), and for each operation of
each checks every side, times them in turns and asks for their memory. A row that
fails says so, and the table goes on. Prints the rows by family, then the geometric
mean of ratios, the rows below 0.95 and the worst; writes STEM.json and STEM.png.

A ratio is the least median of the peers over ours. `first` is the time to the first
result of a program of one call: tracing and compiling, beside others in threads, and
the first call, alone. --first measures times to the first result by themselves, in
new processes. --limit begins no more rows after so many seconds; --resume goes on with
a table that has some, where commit and device are the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from concurrent.futures import Executor
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import Progress

from benchmarks import families, first, range_report, record, torch_side
from benchmarks.cases import DTYPES, OPS, names
from benchmarks.ceilings import Ceilings
from benchmarks.drawn import DrawnCase
from benchmarks.jax_side import compiled
from benchmarks.layers import ENGINES, PEERS
from benchmarks.range_row import Prepared, alive, described, key_of, measure

BLOCK = 16  # rows that are compiled, in threads, before the first of them is timed
SAVED_EVERY = 10  # seconds


class Table:
    """The rows of a result; with --resume, those that are there already first."""

    def __init__(self, options: argparse.Namespace, console: Console):
        self.options, self.console = options, console
        self.environment = record.environment()
        name = f"range-{record.slug(self.environment)}"
        self.stem = options.out or record.RESULTS / name
        self.rows: list[dict] = []
        self.lost = False
        self._start = time.perf_counter()
        self._before, self._ceilings = 0.0, {}
        self._peers = list(options.peers)
        problem = torch_side.problem(jax.default_backend())
        if "torch" in self._peers and problem:
            console.print(f"without PyTorch: {problem}")
            self._peers.remove("torch")
        if options.resume:
            self._resume()

    def _resume(self) -> None:
        """Takes the rows that are there.

        Raises:
          SystemExit: they are of other code, or of another device.
        """
        path = record.json_path(self.stem)
        if not path.exists():
            return
        found = json.loads(path.read_text())
        for key in ("commit", "device"):
            there, here = found["environment"][key], self.environment[key]
            if there != here:
                raise SystemExit(f"{path} is of {key} {there}, and this is {here}")
        self.rows, self._ceilings = found["rows"], found["ceilings"]
        self._before = found["seconds_taken"]

    @property
    def seconds(self) -> float:
        """Since this process began with it."""
        return time.perf_counter() - self._start

    @property
    def _over(self) -> bool:
        return self.lost or self.seconds > self.options.limit

    def fill(self, wanted: list[DrawnCase]) -> None:
        """Measures the rows that are not there, as many as time allows."""
        engine = self.options.engine
        there = {key_of(row) for row in self.rows}
        todo = [c for c in wanted if key_of(described(c, engine)) not in there]
        if not todo or self._over:
            return
        ceilings = Ceilings()
        saved = self.seconds

        def prepare(case: DrawnCase, stock: Executor) -> Prepared:
            return Prepared(case, engine, self._peers, stock, self.options.beside)

        with Progress(console=self.console, transient=True) as progress:
            task = progress.add_task("timing", total=len(todo))
            for begin in range(0, len(todo), BLOCK):
                ready = compiled(prepare, todo[begin : begin + BLOCK], progress)
                while ready and not self._over:
                    prepared = ready.pop(0)  # and let go of: it holds operands
                    case = prepared.case
                    progress.update(task, description=f"{case.op} {case.name}")
                    seconds, repeats = self.options.seconds, self.options.repeats
                    row = measure(prepared, ceilings, seconds, repeats)
                    self.rows.append(row)
                    self.lost = range_report.failures(row) != {} and not alive()
                    progress.advance(task)
                    if not ready or self._over or self.seconds - saved > SAVED_EVERY:
                        self._ceilings |= ceilings.record()
                        self.save()
                        saved = self.seconds
                if self._over:
                    break

    def result(self) -> dict:
        return {
            "environment": self.environment,
            "table": "range",
            "seeds": sorted({row["seed"] for row in self.rows}),
            "ceilings": self._ceilings,
            "seconds_taken": round(self._before + self.seconds, 1),
            "summary": range_report.summary(self.rows),
            "rows": self.rows,
        }

    def save(self) -> Path:
        return record.save(self.result(), self.stem)

    def go_on(self, arguments: list[str]) -> None:
        """Goes on in a new process: an error has ended what this one's device does."""
        self.console.print(f"the device is lost after {len(self.rows)} rows")
        left = str(self.options.limit - self.seconds)
        more = ["--resume", "--limit", left, "--out", str(self.stem)]
        program = [sys.executable, "-m", "benchmarks", "range", *arguments, *more]
        sys.stdout.flush()
        os.execv(sys.executable, program)


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks range",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--families", type=names(families.FAMILIES), default=list(families.FAMILIES))
    add("--seed", type=int, default=0)
    add("--count", type=int, default=6, help="draws of each family")
    add("--dtype", choices=[*DTYPES, *DTYPES.values()], help="of all (default: drawn)")
    add("--op", type=names(OPS), default=list(OPS))
    add("--engine", choices=ENGINES, default="auto", help="ours")
    add("--beside", type=names(ENGINES), default=[], help="timed, too; no peers")
    add("--peers", type=names([*PEERS, "none"]), default=list(PEERS))
    add("--largest", type=float, default=math.inf, metavar="BYTES", help="of x and y")
    add("--seconds", type=float, default=0.008, help="of one timing")
    add("--repeats", type=int, default=3)
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--resume", action="store_true", help="keeps the rows that are there")
    add("--first", action="store_true", help="times to the first result alone")
    add("--side", choices=first.SIDES, help="of --first: that one, in this process")
    add("--out", type=Path, help="path without suffix (benchmarks/results/...)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = options_of(arguments)
    dtype = DTYPES.get(options.dtype, options.dtype)
    limits = options.seed, options.count, options.largest, dtype
    drawn = [d for name in options.families for d in families.draws(name, *limits)]
    console = Console(width=None if Console().is_terminal else 170, soft_wrap=True)
    if options.first:
        first.main(options, arguments, drawn, console)
        return
    table = Table(options, console)
    wanted = families.cases(drawn, options.op)
    table.fill(wanted)
    if table.lost:
        table.go_on(arguments)
    if not table.rows:
        return
    result = table.result()
    range_report.show(console, result)
    if len(table.rows) < len(wanted):
        console.print(f"{len(table.rows)} of {len(wanted)} rows; --resume goes on")
    written = [table.save(), range_report.draw(result, table.stem)]
    console.print("wrote " + " and ".join(map(str, written)))
