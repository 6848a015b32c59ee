# SPDX-License-Identifier: Apache-2.0
"""Writes the table from which plans choose engine and configuration on this device.

    python -m benchmarks plans [--table resnet50,hard,flux,sofie] [--dtype bf16,f32]
                               [--batch 8,256] [--rows ...] [--op ...] [--columns]

times the engines and configurations of ours on the rows of the tables, as
`jax_convbatch.tune` does, and writes jax_convbatch/_select/tables/DEVICE.json. Rows
that are there and not timed again stay. im2col_gemm is timed for gradients of 1x1
convolutions, where it needs no columns; with --columns everywhere. Every time goes to
STEM.json. Interrupted, it writes what is done.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import Progress

from benchmarks import record
from benchmarks.cases import DTYPES, OPS, Case, Pool, cases, names
from benchmarks.jax_side import operation
from jax_convbatch._native import targets
from jax_convbatch._select import choices
from jax_convbatch._tune.tune import (
    Candidates,
    Problem,
    Times,
    fastest,
    measure,
    problems_of,
)


def problem_of(case: Case) -> Problem:
    operands = [jax.ShapeDtypeStruct(s, case.dtype) for s in case.operands]
    (problem,) = problems_of(operation("auto", case), *operands)
    return problem


def engines_of(case: Case, columns: bool) -> tuple[str, ...]:
    """Those that may be fastest.

    Columns in memory are what implicit_gemm is there to do without, and fprop by
    another engine leaves what follows in a layer to one pass more.
    """
    has_none = case.row[4:8] == (1, 1, 1, 0)
    matters = columns or (has_none and case.op != "fprop")
    return ("implicit_gemm", *(["im2col_gemm"] if matters else []))


def timed(
    todo: list[Case], columns: bool, repeats: int, progress: Progress
) -> Iterator[tuple[Problem, Times]]:
    """Times of every case that can be run in several ways.

    All programs are there before the first is timed: compiling meanwhile would hold
    up the launches of small convolutions.
    """
    start, platform = time.perf_counter(), targets.default_platform()
    pool, ready = Pool(todo), []
    with ThreadPoolExecutor() as threads:
        try:
            for problem, case in {problem_of(case): case for case in todo}.items():
                engines = engines_of(case, columns)
                ways = [c for c in problem.candidates(platform) if c[0] in engines]
                if len(ways) > 1:
                    made = Candidates(problem, ways, platform, threads)
                    ready.append((case, made))
            for case, made in progress.track(ready, description="compiling"):
                made.sides()
                for shape in case.operands:
                    pool.ready(case.dtype, shape)
        except BaseException:  # what waits is not begun
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    compiled = time.perf_counter() - start
    progress.console.print(f"{len(ready)} convolutions compiled in {compiled:.0f} s")
    task = progress.add_task("timing", total=len(ready))
    while ready:  # and let go of, one by one
        case, made = ready.pop(0)
        operands = pool.operands(case, made.counts)
        yield made.problem, measure(made, operands, 0.003, repeats)
        progress.advance(task)


def rules(entry: dict, times: Times) -> bool:
    """Whether an entry of the table is what the rule would have chosen."""
    engine, _ = next(iter(times))
    return entry["engine"] == engine and not entry["configs"]


def _options(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", default="resnet50,hard,flux,sofie")
    parser.add_argument("--dtype", help="default: bf16 and f32, hard rows in bf16")
    parser.add_argument("--batch", help="default: each table's own")
    parser.add_argument("--rows", type=names(), help="some rows, by name")
    parser.add_argument("--op", default=",".join(OPS))
    parser.add_argument("--columns", action="store_true", help="im2col_gemm everywhere")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--into", type=Path, default=choices.TABLES)
    parser.add_argument("--out", type=Path, help="path without suffix")
    return parser.parse_args(arguments)


def _cases(options) -> list[Case]:
    dtypes = options.dtype and [DTYPES.get(d, d) for d in options.dtype.split(",")]
    batches = options.batch and [int(n) for n in options.batch.split(",")]
    return [
        case
        for table in options.table.split(",")
        for case in cases(
            table,
            options.op.split(","),
            batches,
            dtypes or (["bfloat16", "float32"] if table == "resnet50" else None),
            options.rows,
        )
    ]


def main(arguments=None) -> None:
    options = _options(arguments)
    start = time.perf_counter()
    todo = _cases(options)
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    environment = record.environment()
    times = {}
    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):  # keeps what there is
        for problem, each in timed(todo, options.columns, options.repeats, progress):
            times[problem] = each
    device = targets.device_name(targets.default_platform())
    path = options.into / f"{choices.slug(device)}.json"
    old = choices.load(path, device) if path.exists() else {}
    new = choices.merged(old, fastest(times))
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {key: environment[key] for key in ("date", "commit", "jax")}
    choices.write(path, device, new, **made)
    rows = [
        {
            "key": problem.key,
            "batch": problem.params.geometry.N,
            "us": {" ".join(c).strip(): [round(t, 2) for t in each[c]] for c in each},
        }
        for problem, each in times.items()
    ]
    stem = options.out or record.RESULTS / f"plans-{record.slug(environment)}"
    log = record.save({"environment": environment, "rows": rows}, stem)
    others = [
        p for p, each in times.items() if not rules(fastest({p: each})[p.key], each)
    ]
    console.print(
        f"{len(times)} convolutions in {time.perf_counter() - start:.0f} s; another "
        f"choice than the rule's is faster for {len(others)}"
    )
    console.print(f"wrote {path} and {log}")
