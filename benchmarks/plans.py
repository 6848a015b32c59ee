"""Writes the table from which plans choose engine and configuration on this device.

    python -m benchmarks plans [--table resnet50,hard,flux,sofie] [--dtype bf16,f32]
                               [--batch 8,256] [--op ...]

times every engine and configuration of ours on the rows of the tables, as
`jax_convbatch.tune` does, and writes jax_convbatch/tables/DEVICE.json. Rows that are
there and not timed again stay. Every time goes to STEM.json. Interrupted, it writes
what is done.
"""

from __future__ import annotations

import argparse
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import Progress

from benchmarks import record
from benchmarks.cases import DTYPES, OPS, cases
from benchmarks.jax_side import operation
from jax_convbatch import choices, targets
from jax_convbatch.tune import Problem, Programs, fastest, problems_of, timed

AT_ONCE = 4  # problems that are compiled, each in threads of its own


def problem_of(case) -> Problem:
    operands = [jax.ShapeDtypeStruct(s, case.dtype) for s in case.operands]
    (problem,) = problems_of(operation("auto", case), *operands)
    return problem


def compiled(problems: list[Problem], platform: str, progress: Progress):
    """Programs of every problem. All are there before the first is timed.

    Compiling meanwhile would hold up the launches of small convolutions, by more
    than these take.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            made = pool.map(lambda problem: Programs(problem, platform), problems)
            return list(
                progress.track(made, total=len(problems), description="compiling")
            )
        finally:
            pool.shutdown(cancel_futures=True)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", default="resnet50,hard,flux,sofie")
    parser.add_argument("--dtype", help="default: bf16 and f32, hard rows in bf16")
    parser.add_argument("--batch", help="default: each table's own")
    parser.add_argument("--op", default=",".join(OPS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--into", type=Path, default=choices.TABLES)
    parser.add_argument("--out", type=Path, help="path without suffix")
    options = parser.parse_args(arguments)
    dtypes = options.dtype and [DTYPES.get(d, d) for d in options.dtype.split(",")]
    batches = options.batch and [int(n) for n in options.batch.split(",")]
    todo = [
        case
        for table in options.table.split(",")
        for case in cases(
            table,
            options.op.split(","),
            batches,
            dtypes or (["bfloat16", "float32"] if table == "resnet50" else None),
        )
    ]
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    environment = record.environment()
    platform = targets.default_platform()
    times = {}
    progress = Progress(console=console, transient=True)
    with progress, contextlib.suppress(KeyboardInterrupt):  # keeps what there is
        problems = list(dict.fromkeys(map(problem_of, todo)))
        ready = compiled(problems, platform, progress)
        for problem, programs in progress.track(
            list(zip(problems, ready, strict=True)), description="timing"
        ):
            times[problem] = timed(programs, seconds=0.005, repeats=options.repeats)
    device = targets.device_name(platform)
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
            "us": {" ".join(c).strip(): round(t, 2) for c, t in each.items()},
        }
        for problem, each in times.items()
    ]
    stem = options.out or record.RESULTS / f"plans-{record.slug(environment)}"
    log = record.save({"environment": environment, "rows": rows}, stem)
    slower = sum(min(t, key=t.get) != next(iter(t)) for t in times.values())
    console.print(
        f"{len(times)} convolutions, of which the rule has not the fastest of {slower}"
    )
    console.print(f"wrote {path} and {log}")
