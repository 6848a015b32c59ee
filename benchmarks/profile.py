# SPDX-License-Identifier: Apache-2.0
"""What a row's kernels do on the GPU, by Nsight Compute.

    python -m benchmarks profile --table resnet50 --rows 14_3x3s2_512_512 --op wgrad \\
        --batch 256 --dtype bf16 --sides ours,torch

runs every side of every row under `ncu`, which has to be installed and permitted to
read the GPU's counters, and writes for each kernel: its time, the SM's clock, how busy
tensor cores, issue slots, shared memory, L2 and memory were, the bytes that moved, and
its registers, shared memory a block and waves. Prints a table and writes STEM.json.

A kernel runs alone, its caches empty and the clock as the GPU takes it: times are near
those of `layers`, not the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import ncu, record
from benchmarks.cases import Case, add_options, cases_of, names
from benchmarks.profiled import MARK

SIDES = ("ours", "torch", "xla", "gemm")
LONGEST = 44  # of a kernel's name in the table
HEADINGS = {
    "us": "µs",
    "sm_ghz": "GHz",
    "tensor_pct": "tensor\n%",
    "issue_pct": "issue\n%",
    "shared_pct": "shared\n%",
    "l2_pct": "L2\n%",
    "dram_pct": "DRAM\n%",
    "l2_to_sm_mb": "L2 to SM\nMB",
    "read_mb": "read\nMB",
    "written_mb": "written\nMB",
    "registers": "regs",
    "shared_kb": "shared\nKiB",
    "waves": "waves",
}


def profiled(wanted: list[Case], sides: list[str], runs: int) -> dict:
    """The result: environment, and the kernels of every side of every case.

    Raises:
      NoProfile: nothing was profiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec, made, log = (Path(folder, name) for name in ("spec", "made", "log"))
        described = [dataclasses.asdict(case) for case in wanted]
        spec.write_text(json.dumps({"cases": described, "sides": sides, "runs": runs}))
        # PyTorch lives in the same process.
        env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        program = [sys.executable, "-m", "benchmarks.profiled", str(spec), str(made)]
        kernels = ncu.run(program, log, env)
        said = json.loads(made.read_text())
    parts = iter(of_runs(kernels, len(wanted) * len(sides) * runs))
    rows = []
    for i, case in enumerate(wanted):
        found = {}
        for side in sides:
            same = ncu.medians([next(parts) for _ in range(runs)])
            us = round(sum(kernel["us"] for kernel in same), 2)
            found[side] = {"us": us, "kernels": same}
        if "ours" in found:
            found["ours"] |= said["chosen"][i]
        rows.append({**dataclasses.asdict(case), "sides": found})
    return {
        "environment": said["environment"],
        "metrics": {key: metric for key, (metric, _) in ncu.METRICS.items()},
        "runs": runs,
        "rows": rows,
    }


def of_runs(kernels: list[dict], runs: int) -> list[list[dict]]:
    """The kernels of each run, which an empty one precedes.

    Raises:
      NoProfile: a run is not there, or has no kernels.
    """
    found: list[list[dict]] = []
    for kernel in kernels:
        if kernel["name"] == f"{MARK}{len(found)}":
            found.append([])
        elif found:
            found[-1].append(kernel)
    if len(found) != runs or not all(found):
        some = sum(map(bool, found))
        raise ncu.NoProfile(f"Nsight Compute: kernels of {some} runs, not of {runs}")
    return found


def show(console: Console, result: dict) -> None:
    for key, value in result["environment"].items():
        console.print(f"{key} {value}", end=", ")
    console.print()
    for row in result["rows"]:
        console.print(_table(row))


def _table(row: dict) -> Table:
    title = f"{row['op']} of {row['name']}, batch {row['batch']}, {row['dtype']}"
    view = Table(title=title, title_justify="left")
    view.add_column("side")
    view.add_column("kernel", no_wrap=True)
    for heading in HEADINGS.values():
        view.add_column(heading, justify="right")
    for side, found in row["sides"].items():
        for kernel in found["kernels"]:
            name = kernel["name"]
            if len(name) > LONGEST:
                name = name[: LONGEST - 3] + "..."
            cells = [f"{kernel[key]:g}" if key in kernel else "" for key in HEADINGS]
            view.add_row(side, name, *cells)
    return view


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_options(add)
    add("--sides", type=names(SIDES), default=["ours"])
    add("--runs", type=int, default=1, help="of each, for medians")
    add("--out", type=Path, help="path without suffix (benchmarks/results/...)")
    return parser.parse_args(arguments)


def main(arguments=None) -> None:
    options = options_of(arguments)
    console = Console(width=None if Console().is_terminal else 170, soft_wrap=True)
    wanted = cases_of(options)
    try:
        with console.status("Nsight Compute runs each operation"):
            result = profiled(wanted, options.sides, options.runs)
    except ncu.NoProfile as error:
        raise SystemExit(str(error)) from None
    show(console, result)
    name = f"profile-{options.table}-{record.slug(result['environment'])}"
    path = record.save(result, options.out or record.RESULTS / name)
    console.print(f"wrote {path}")
