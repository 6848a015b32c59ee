# SPDX-License-Identifier: Apache-2.0
"""What each family of kernels is worth: rows with it, and with the next best way.

    python -m benchmarks kernels [--tables resnet50,zoo,...] [--dtype f32]
                                 [--families halo,...] [--most 12] [--limit S]

plans each row with and without each family of implicit_gemm's kernels. A row that is
planned otherwise without it takes the family, and is timed in three processes in turns:
as it is, without the family, and by cuDNN. A loss is the least of the two others' times
over the first. `most` rows of a family are timed, evenly among those that take it.

Prints a line for each family, with the lines of its files, and writes STEM.json. A
family whose rows lose less than 10%, or that no row takes, does not earn its lines.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Mapping, Sized
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch
from benchmarks import record
from benchmarks.cases import DTYPES, names
from benchmarks.compare import Lost, Side, add_rows, both, of_rows, turns
from benchmarks.compare_side import MODULES
from benchmarks.report import geometric_mean

CUDA = Path(__file__).parents[1] / "ffi" / "cuda"
BLOCK = 12  # rows that are compiled before the first of them is timed
EARNS = 1.1  # the least loss

# Of each family the beginnings of its files' names. Files that no family has serve
# those that are always there: conv, wgrad, epilogues and what all share.
FILES = {
    "conv_transposed": ["sm90/kernels/conv/transpose"],
    "depthwise_copies": ["sm90/kernels/depthwise/depthwise_copies"],
    "depthwise_planes": ["sm90/kernels/depthwise/depthwise_planes"],
    "depthwise_sequences": [
        "sm80/causal_conv1d/depthwise_sequences",
        "sm80/causal_conv1d/few_rows",
    ],
    "depthwise_toeplitz": ["sm90/kernels/depthwise/depthwise_toeplitz"],
    "direct_groups": ["sm80/direct/grouped", "sm80/direct/quads", "sm80/direct/mma"],
    "few_channels": [
        "sm90/kernels/few_channels/few_channels.",
        "sm90/kernels/few_channels/few_channels_fprop",
        "sm90/kernels/few_channels/few_channels_launch",
        "sm90/kernels/few_channels/few_channels_p",
        "sm90/kernels/few_channels/few_channels_wgrad",
    ],
    "few_channels_tf32": ["sm90/kernels/few_channels/few_channels_tf32"],
    "group_tf32": ["sm90/kernels/narrow_groups/"],
    "halo": ["sm90/kernels/halo/"],
    "padding": ["sm90/kernels/padding/"],
    "product_wgrad": ["cublas/product_wgrad"],
    "row_band": ["sm90/kernels/row_band/"],
    "row_streaming": ["sm90/kernels/row_streaming/"],
    # What it takes is not folded, and without it is no more either.
    "scalars": ["sm80/direct/scalars"],
    "single_wave": ["sm90/kernels/single_wave/", "sm90/instantiations/single_wave"],
    "skinny": ["sm90/kernels/skinny/"],
    "small": ["sm90/kernels/small/"],
    "stem_tf32": ["sm90/kernels/few_channels/stem_tf32"],
    "wgrad_halo": ["sm90/kernels/wgrad/wgrad_halo"],
    "wgrad_short": ["sm90/kernels/wgrad/wgrad_short"],
}


def lines_of(family: str) -> int:
    """Of the files of a family."""
    found = [path for start in FILES[family] for path in files_of(start)]
    return sum(len(path.read_text().splitlines()) for path in found)


def files_of(start: str) -> list[Path]:
    """Files of ffi/cuda whose names begin so."""
    folder = (CUDA / start).parent if not start.endswith("/") else CUDA / start
    return [
        path
        for path in sorted(folder.iterdir())
        if path.relative_to(CUDA).as_posix().startswith(start)
    ]


def takers(sides: dict, rows: int, families: list[str]) -> dict[str, list[int]]:
    """The rows that take each family, found by both sides beside each other."""
    first, second = sides["with"], sides["without"]
    half = rows // 2
    first.send("takers", list(range(half)), families)
    second.send("takers", list(range(half, rows)), families)
    found: dict[str, list[str]] = {}
    for answer in (first.receive(), second.receive()):
        if "failed" in answer:
            raise SystemExit(f"error: {answer['failed']}")
        found |= answer["takers"]
    return {
        family: sorted(int(i) for i, taken in found.items() if family in taken)
        for family in families
    }


def evenly(numbers: list[int], most: int) -> list[int]:
    """So many of them, the first and the last among them."""
    if len(numbers) <= most:
        return numbers
    apart = (len(numbers) - 1) / max(most - 1, 1)
    return [numbers[int(i * apart)] for i in range(most)]


def timed(sides: dict, family: str, number: int, repeats: int) -> dict:
    """Of one row: what the sides take, and what is lost."""
    times, failed = turns(sides, number, repeats)
    us = {name: round(statistics.median(of), 3) for name, of in times.items()}
    row: dict = {"family": family, "us": us}
    if failed:
        row["failed"] = failed
    others = [us[name] for name in ("without", "cudnn") if name in us]
    if "with" in us and others:
        row["loss"] = round(min(others) / us["with"], 4)
    return row


def fill(rows: list[dict], sides: dict, todo: dict, known: list, options, progress):
    """Times the rows of each family, as many as time allows."""
    start = time.monotonic()
    task = progress.add_task("timing", total=sum(map(len, todo.values())))
    for family, numbers in todo.items():
        sides["without"].ask("leave_out", [family])
        for first in range(0, len(numbers), BLOCK):
            if time.monotonic() - start > options.limit:
                return
            block = numbers[first : first + BLOCK]
            plans = both(sides, "prepare", block)
            for i in block:
                table, name = known[i]
                progress.update(task, description=f"{family} {table} {name}")
                row = timed(sides, family, i, options.repeats)
                words = {n: plans[n]["plans"][str(i)] for n in ("with", "without")}
                rows.append({"table": table, "name": name, "plans": words} | row)
                progress.advance(task)


def summary(rows: list[dict], taken: Mapping[str, Sized]) -> list[dict]:
    """A line for each family, those that lose least first; `taken`: by which rows."""
    found = []
    for family in taken:
        of = [row for row in rows if row["family"] == family and "loss" in row]
        losses = [row["loss"] for row in of]
        worst = max(of, key=lambda row: row["loss"], default=None)
        mean = geometric_mean(losses)
        found.append(
            {
                "family": family,
                "lines": lines_of(family),
                "rows": len(taken[family]),
                "timed": len(losses),
                "mean": None if math.isnan(mean) else round(mean, 3),
                "over": sum(loss >= EARNS for loss in losses),
                "most": worst and worst["loss"],
                "worst": worst and f"{worst['table']} {worst['name']}",
            }
        )
    return sorted(found, key=lambda line: line["mean"] or 0)


def show(console: Console, lines: list[dict]) -> None:
    view = Table(title="what is lost without a family")
    heads = ("family", "lines", "rows", "timed", "mean", "over 1.1", "most", "of")
    for head in heads:
        view.add_column(head, justify="left" if head in ("family", "of") else "right")
    for line in lines:
        view.add_row(*("-" if v is None else str(v) for v in line.values()))
    console.print(view)


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_rows(add)
    add("--dtype", type=names(DTYPES), help="of the tables: else each has its own")
    add("--families", type=names(FILES), default=list(FILES), help=", ".join(FILES))
    add("--most", type=int, default=12, help="rows of a family")
    add("--seconds", type=float, default=0.008, help="of one timing")
    add("--repeats", type=int, default=5)
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--out", type=Path, help="path without suffix (default: out/kernels)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = options_of(arguments)
    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    build = Path(jax_convbatch.__file__).parent / f"{MODULES['cuda']}.abi3.so"
    dtypes = options.dtype and [DTYPES[name] for name in options.dtype]
    of_side = of_rows(options) | {"dtypes": dtypes}
    engines = {"with": "rule", "without": "rule", "cudnn": "cudnn"}
    sides = {
        name: Side(build, "cuda", of_side | {"engine": engine}, share=0.25)
        for name, engine in engines.items()
    }
    rows: list[dict] = []
    taken: dict[str, list[int]] = {}
    try:
        found = both(sides, "rows")["with"]
        taken = takers(sides, len(found["rows"]), options.families)
        todo = {family: evenly(of, options.most) for family, of in taken.items()}
        with (
            Progress(console=console, transient=True) as progress,
            contextlib.suppress(KeyboardInterrupt),  # keeps what there is
        ):
            fill(rows, sides, todo, found["rows"], options, progress)
    except Lost as error:
        console.print(f"{error}")
    finally:
        for side in sides.values():
            side.end()
    if not taken:
        raise SystemExit("error: no rows")
    result = {
        "environment": found["environment"],
        "table": "kernels",
        "summary": summary(rows, taken),
        "rows": rows,
    }
    show(console, result["summary"])
    stem = options.out or Path("out") / "kernels"
    console.print(f"wrote {record.save(result, stem)}")
