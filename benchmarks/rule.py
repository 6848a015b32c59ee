# SPDX-License-Identifier: Apache-2.0
"""Random convolutions by the rule of "auto", beside the other engines of ours.

    python -m benchmarks rule [--families video,audio] [--seed 0] [--count 6]
                              [--dtype bf16] [--op ...] [--columns] [--configs]
                              [--tables resnet50,zoo]

draws convolutions as `range` does, and for each operation times what the rule
(`jax_convbatch/_select/rules.py`) takes without a table, the default of every other
engine, and the configurations of cuDNN, as `jax_convbatch.tune` does. No peers and no
checks: what it measures is the rule. im2col_gemm is timed where the rule takes it;
with --columns everywhere. --configs times all configurations of every engine.

Prints the operations where another way is faster by more than 5%, the worst first;
then, by line of the rule, how much is lost and which engine was fastest; then the
geometric mean of all losses. A loss is the time of the rule's way over the least.
Every time goes to STEM.json. --limit begins no more blocks of rows after so many
seconds; interrupted, it keeps what is done.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks import families, record, rule_report, workloads
from benchmarks.cases import DTYPES, OPS, names
from benchmarks.drawn import Draw, DrawnCase
from benchmarks.jax_side import compiled
from benchmarks.numbers import Maker
from benchmarks.plans import problem_of
from benchmarks.range import BLOCK
from benchmarks.range_row import alive, told
from benchmarks.window import Window
from jax_convbatch._native import targets
from jax_convbatch._plans import planners
from jax_convbatch._select import rule_table, rules
from jax_convbatch._tune.tune import Candidates, Problem, measure

Way = tuple[str, str]  # engine and configuration
WHY = 60  # characters of a line's reason, which tell lines apart when some are added


def line_of(problem: Problem, platform: str) -> dict | None:
    """The line of the rule that decides, or None where the rule has no lines."""
    if platform != "cuda":
        return None
    p = problem.params
    dtypes = np.dtype(problem.dtype), np.dtype(problem.out_dtype)
    line = rules.line(
        planners.Problem(
            problem.op, p.geometry, *dtypes, platform, precision=p.precision_level
        )
    )
    return {"index": rule_table.CUDA.index(line), "why": line.why[:WHY]}


def ways(found: list[Way], columns: bool, configs: bool) -> list[Way]:
    """Those of `found` that are timed, the rule's own first.

    Columns in memory are what the other engines are there to do without. The
    configurations of cuDNN are all timed: its heuristics order them without timing.

    Raises:
      ValueError: there are none.
    """
    if not found:
        raise ValueError("no engine of ours runs it")
    defaults = {engine: (engine, config) for engine, config in reversed(found)}
    left_out = () if columns or found[0][0] == "im2col_gemm" else ("im2col_gemm",)
    return [
        way
        for way in found
        if way[0] not in left_out
        and (configs or way[0] == "cudnn" or way == defaults[way[0]])
    ]


def named(way: Way) -> str:
    return " ".join(way).strip()


class Prepared:
    """An operation whose ways are compiled, or its row with the error."""

    def __init__(
        self, case: DrawnCase, platform: str, options, threads: Executor
    ) -> None:
        self.case = case
        self.row: dict[str, Any] = {**case.draw.describe(), "op": case.op}
        with self.kept():
            problem = problem_of(case)
            self.row["line"] = line_of(problem, platform)
            found = problem.candidates(platform)
            timed = ways(found, options.columns, options.configs)
            self.row["first"] = named(timed[0])
            pairs = case.pairs(platform)
            self.candidates = Candidates(problem, timed, platform, threads, pairs)
            self._makers = [Maker(shape, case.dtype) for shape in case.operands]
            self.candidates.sides()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """An error within is the row's."""
        try:
            yield
        except Exception as error:
            self.row["error"] = told(error)

    def operands(self) -> list[list]:
        """Sets of random operands, no two of them the same."""
        return [
            [make("uniform", 16 * (1 + role) + i) for i in range(count)]
            for role, (make, count) in enumerate(
                zip(self._makers, self.candidates.counts, strict=True)
            )
        ]

    def measured(self, seconds: float, repeats: int) -> dict:
        """The row, with times and loss if nothing fails."""
        if "error" in self.row:
            return self.row
        with self.kept():
            times = measure(self.candidates, self.operands(), seconds, repeats)
            us = {named(way): round(each.median, 3) for way, each in times.items()}
            self.row["us"] = us
            self.row["loss"] = round(us[self.row["first"]] / min(us.values()), 4)
        return self.row


def rows_of(
    todo: list[DrawnCase], options: argparse.Namespace, progress: Progress
) -> Iterator[dict]:
    """The rows, as many as time allows.

    A block of them is compiled before the first is timed: compiling meanwhile would
    hold up the launches of small convolutions.
    """
    start, platform = time.perf_counter(), targets.default_platform()
    task = progress.add_task("timing", total=len(todo))
    for begin in range(0, len(todo), BLOCK):
        if time.perf_counter() - start > options.limit:
            return
        ready = _block(todo[begin : begin + BLOCK], platform, options, progress)
        while ready:
            prepared = ready.pop(0)  # and let go of: it holds programs
            case = prepared.case
            progress.update(task, description=f"{case.op} {case.name}")
            row = prepared.measured(options.seconds, options.repeats)
            del prepared
            yield row
            progress.advance(task)
            if "error" in row and not alive():
                progress.console.print(f"{case.name} {case.op} has lost the device")
                return


def _block(
    cases: list[DrawnCase], platform: str, options, progress: Progress
) -> list[Prepared]:
    with ThreadPoolExecutor() as threads:

        def prepare(case: DrawnCase, stock: Executor) -> Prepared:
            return Prepared(case, platform, options, threads)

        return compiled(prepare, cases, progress)


def table_draws(table: str, dtypes: list[str]) -> list[Draw]:
    """The rows of a table of `workloads`, as if they were drawn."""
    rows, _ = workloads.TABLES[table]
    return [
        Draw(
            *(table, 0, f"{name}_{batch}", batch, row[:2], *row[2:4], row[4:6]),
            *(Window.of_row(row), dtype, True),
        )
        for name, (batches, row) in rows.items()
        for batch in batches
        for dtype in dtypes
    ]


def _options(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks rule",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--families", type=names(families.FAMILIES), default=list(families.FAMILIES))
    add("--tables", type=names(workloads.TABLES), help="instead of draws")
    add("--seed", type=int, default=0)
    add("--count", type=int, default=6, help="draws of each family")
    add("--dtype", choices=[*DTYPES, *DTYPES.values()], help="of all (default: drawn)")
    add("--op", type=names(OPS), default=list(OPS))
    add("--columns", action="store_true", help="im2col_gemm everywhere")
    add("--configs", action="store_true", help="all of every engine")
    add("--largest", type=float, default=math.inf, metavar="BYTES", help="of x and y")
    add("--seconds", type=float, default=0.003, help="of one timing")
    add("--repeats", type=int, default=5)
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--out", type=Path, help="path without suffix (benchmarks/results/...)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    start = time.perf_counter()
    dtype = DTYPES.get(options.dtype, options.dtype)
    limits = options.seed, options.count, options.largest, dtype
    if options.tables:
        dtypes = [dtype] if dtype else list(DTYPES.values())
        drawn = [d for name in options.tables for d in table_draws(name, dtypes)]
    else:
        drawn = [d for name in options.families for d in families.draws(name, *limits)]
    wanted = families.cases(drawn, options.op)
    console = Console(width=None if Console().is_terminal else 170, soft_wrap=True)
    environment = record.environment()
    stem = options.out or record.RESULTS / f"rule-{record.slug(environment)}"
    rows: list[dict] = []

    def result() -> dict:
        return {
            "environment": environment,
            "table": "rule",
            "seconds_taken": round(time.perf_counter() - start, 1),
            "summary": rule_report.summary(rows),
            "rows": rows,
        }

    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):  # keeps what there is
        for row in rows_of(wanted, options, progress):
            rows.append(row)
            if len(rows) % BLOCK == 0:
                record.save(result(), stem)
    if len(rows) < len(wanted):
        console.print(f"{len(rows)} of {len(wanted)} rows")
    if rows:
        found = result()
        rule_report.show(console, found)
        console.print(f"wrote {record.save(found, stem)}")
