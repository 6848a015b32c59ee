# SPDX-License-Identifier: Apache-2.0
"""One GEMM a batch against one GEMM a sample: the gemmStridedBatched study.

    python -m benchmarks sofie [--engine per_sample,im2col_gemm,...] [--out STEM]

times our engines and `xla` (jax.lax) in one run on the shapes of ROOT/SOFIE's
study, float32 at default precision: a stack of eight layers at several batch sizes,
and the time of one layer for four sizes at batch 8, which is an eighth of a stack's
time. On a GPU a program holds several stacks, one after the other: one alone would
time the 30 us or so that JAX needs to start any program. Results are checked before
they are timed: whole numbers exactly, and im2col_gemm against per_sample bit for
bit. Writes STEM.json and STEM.png and prints the tables.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import record, report
from benchmarks.cases import Case, Pool
from benchmarks.check import Check
from benchmarks.jax_side import JaxSide
from benchmarks.workloads import (
    SOFIE_BATCHES,
    SOFIE_LAYERS,
    SOFIE_SINGLE,
    SOFIE_SINGLE_BATCH,
    SOFIE_STACK,
    arguments,
    shapes,
)
from jax_convbatch._select import plan
from jax_convbatch._tune import timing
from jax_convbatch._tune.calls import first_and_numbers

OURS = ("per_sample", "im2col_gemm", "auto")
STACKS = 16  # in a program, on a GPU


def stack(engine: str, row, x, filters):
    for w in filters:
        x = jcb.conv(x, w, algorithm=engine, **arguments(row))
    return x


class Stacks(timing.Side):
    """Stacks of layers as a side of a measurement."""

    def __init__(self, engine: str, row, xs, filters):
        self.name = engine
        self.calls = len(xs)

        def program(xs, filters):
            return first_and_numbers([stack(engine, row, x, filters) for x in xs])

        self._call = jax.jit(program).lower(xs, filters).compile()
        self._arguments = (xs, filters)
        self._out = None

    def queue(self) -> None:
        self._out = None
        self._out = self._call(*self._arguments)

    def wait(self) -> None:
        timing.wait_for(self._out)

    def first(self) -> jax.Array:
        return self._call(*self._arguments)[0]


def check(batch: int, row, engines) -> None:
    """Raises WrongResult where an engine is wrong on whole numbers."""
    case = Case("layer", row, batch, "float32", "fprop")
    right = Check(case, Pool([case]))
    first, second = right.operands
    for engine in engines:
        result = JaxSide(engine, case).once(first, second)
        right(engine, result, exact=engine != "xla")


def measure(name: str, batch: int, row, per: int, engines) -> dict:
    """Times of every engine on a stack of equal layers, divided by `per`."""
    check(batch, row, engines)
    x_shape, w_shape, _ = shapes(batch, row)
    count = 1 if jax.default_backend() == "cpu" else STACKS
    pool = Pool([Case("layer", row, batch, "float32", "fprop")])
    xs = pool.arrays("normal", "float32", x_shape, count)
    scale = np.prod(w_shape[:3]) ** -0.5
    filters = pool.arrays("normal", "float32", w_shape, SOFIE_LAYERS)
    filters = [scale * w for w in filters]
    sides = [Stacks(engine, row, xs, filters) for engine in engines]
    outputs = {side.name: side.first() for side in sides}
    same = {"per_sample", "im2col_gemm"}
    if same <= set(outputs) and not bool(
        jnp.all(outputs["im2col_gemm"] == outputs["per_sample"])
    ):
        sys.exit(f"im2col_gemm and per_sample differ on {name} at batch {batch}")
    times = timing.microseconds(sides)
    result: dict = {"name": name, "batch": batch, "row": row}
    for engine in engines:
        result[engine] = timing.summary([t / per for t in times[engine]])
    return result


def table(title: str, rows: list[dict], engines) -> Table:
    view = Table(title=title)
    view.add_column("layers")
    for heading in ("batch", *(f"{e}, µs" for e in engines)):
        view.add_column(heading, justify="right")
    for engine in engines[:-1]:
        view.add_column(f"xla / {engine}", justify="right")
    for row in rows:
        times = [
            f"{row[e]['median_us']:.1f} ±{row[e]['spread_us'] / 2:.1f}" for e in engines
        ]
        over = [
            f"{row['xla']['median_us'] / row[e]['median_us']:.2f}" for e in engines[:-1]
        ]
        view.add_row(row["name"], str(row["batch"]), *times, *over)
    return view


def draw(result: dict, path: Path, engines) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(13, 4))
    width = 0.8 / len(engines)
    for axis, part in zip(axes, ("stack", "single"), strict=True):
        rows = result[part]
        labels = [f"{row['name']}\nbatch {row['batch']}" for row in rows]
        for i, engine in enumerate(engines):
            heights = [row[engine]["median_us"] for row in rows]
            at = np.arange(len(rows)) + (i - (len(engines) - 1) / 2) * width
            color = report.PALETTE[i % len(report.PALETTE)]
            bars = axis.bar(at, heights, 0.9 * width, label=engine, color=color)
            axis.bar_label(bars, fmt="%.0f", fontsize=7)
        axis.set_xticks(np.arange(len(rows)), labels)
        axis.set_ylabel("µs a call, median")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend()
    info = result["environment"]
    figure.suptitle(
        f"SOFIE layers, float32, {info['device']}, jax {info['jax']}, "
        f"{info['date']}, commit {info['commit']}",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks sofie",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", default=",".join(OURS))
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    options = parser.parse_args(arguments)
    engines = [*options.engine.split(","), "xla"]
    if unknown := set(engines) - set(plan.ALGORITHMS):
        parser.error(f"no engine {', '.join(sorted(unknown))}")
    environment = record.environment()
    console = Console(width=None if Console().is_terminal else 130, soft_wrap=True)
    todo = [("stack", "stack", b, SOFIE_STACK, 1) for b in SOFIE_BATCHES]
    todo += [
        ("single", name, SOFIE_SINGLE_BATCH, row, SOFIE_LAYERS)
        for name, row in SOFIE_SINGLE.items()
    ]
    result: dict = {"environment": environment, "stack": [], "single": []}
    with Progress(console=console, transient=True) as progress:
        for part, *case in progress.track(todo, description="timing"):
            result[part].append(measure(*case, engines))
    stem = options.out or record.RESULTS / f"sofie-{record.slug(environment)}"
    written = [record.save(result, stem), stem.with_name(stem.name + ".png")]
    draw(result, written[1], engines)
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    console.print(table(f"{SOFIE_LAYERS} layers in a row", result["stack"], engines))
    console.print(
        table(f"one layer: 1/{SOFIE_LAYERS} of a stack", result["single"], engines)
    )
    console.print("wrote " + " and ".join(map(str, written)))
