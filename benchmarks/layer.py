"""A whole layer, forward and backward: conv + bias + activation, ours beside stock.

    python -m benchmarks layer [--table resnet50_v1] [--batch 8,256] [--dtype bf16]
                               [--activation relu] [--engine auto]

A call is y and the gradients of x, w and bias, jitted. Stock is
`jax.lax.conv_general_dilated` and jax.numpy. Both are compared with each other before
they are timed, in turns. Prints a table and writes STEM.json.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import record, timing, workloads
from benchmarks.cases import DTYPES, L2_BYTES, Case, cases
from benchmarks.jax_side import NHWC
from jax_convbatch import activations, plan

# Largest relative difference of a result; TF32 rounds f32 operands on a GPU.
TOLERANCE = {"float32": 2e-3, "bfloat16": 2e-2, "float16": 4e-3}


def layer(side: str, row, activation: str):
    """y of (x, w, bias): stock, or ours by the engine that `side` names."""
    kwargs = workloads.arguments(row)
    if side != "stock":
        return partial(
            jcb.conv_bias_act, activation=activation, algorithm=side, **kwargs
        )
    conv = partial(
        jax.lax.conv_general_dilated,
        window_strides=(kwargs["strides"],) * 2,
        padding=((kwargs["padding"],) * 2,) * 2,
        rhs_dilation=(kwargs["dilation"],) * 2,
        feature_group_count=kwargs["groups"],
        dimension_numbers=NHWC,
    )
    chosen = activations.ACTIVATIONS[activation].fn
    return lambda x, w, bias: chosen(conv(x, w) + bias)


def step(side: str, row, activation: str, x, w, bias, dy):
    """(y, dx, dw, db)."""
    y, pullback = jax.vjp(layer(side, row, activation), x, w, bias)
    return y, *pullback(dy)


class LayerSide:
    """A side of a measurement: one program of a call for each set of operands.

    On the CPU, where XLA would run them at once, a program is one call.
    """

    def __init__(self, name: str, row, activation: str, sets):
        self.name = name
        one = partial(step, name, row, activation)
        self._out, self._turn = None, 0
        self._alone = jax.default_backend() == "cpu"
        if self._alone:
            self.calls, self._rounds = 1, sets
            program = one
        else:
            self.calls, self._rounds = len(sets), [sets]

            def program(*sets):
                return [one(*operands) for operands in sets]

        self._program = jax.jit(program).lower(*self._rounds[0]).compile()

    def queue(self) -> None:
        self._out = None
        self._out = self._program(*self._rounds[self._turn])
        self._turn = (self._turn + 1) % len(self._rounds)

    def wait(self) -> None:
        jax.block_until_ready(self._out)

    def once(self):
        """The results for the first set."""
        out = self._program(*self._rounds[0])
        return out if self._alone else out[0]


def operands(row, batch: int, dtype: str):
    """Sets of x, w, bias and dy: more than a GPU's L2 between two uses."""
    x, w, y = workloads.shapes(batch, row)
    itemsize = jnp.dtype(dtype).itemsize
    least = sum(math.prod(shape) for shape in (x, w, y)) * itemsize
    count = int(np.clip(-(-3 * L2_BYTES // least), 2, 8))
    keys = iter(jax.random.split(jax.random.key(0), 4 * count))
    scale = math.prod(w[:3]) ** -0.5
    return [
        (
            jax.random.normal(next(keys), x, dtype),
            scale * jax.random.normal(next(keys), w, dtype),
            jax.random.normal(next(keys), y[-1:], dtype),
            jax.random.normal(next(keys), y, dtype),
        )
        for _ in range(count)
    ]


def measure(case: Case, activation: str, engine: str) -> dict:
    """One row of the result.

    Raises:
      SystemExit: the sides' results differ.
    """
    name, row, batch, dtype = case.name, case.row, case.batch, case.dtype
    sets = operands(row, batch, dtype)
    sides = [LayerSide(side, row, activation, sets) for side in (engine, "stock")]
    results = [side.once() for side in sides]
    for result, *pair in zip(("y", "dx", "dw", "db"), *results, strict=True):
        ours, stock = (np.asarray(a, np.float64) for a in pair)
        difference = np.linalg.norm(ours - stock) / np.linalg.norm(stock)
        if not difference < TOLERANCE[dtype]:
            raise SystemExit(f"{name}, batch {batch}: {result} differs by {difference}")
    times = timing.microseconds(sides)
    found: dict = {"name": name, "row": row, "batch": batch, "dtype": dtype}
    found |= {"ours": timing.summary(times[engine])}
    found |= {"stock": timing.summary(times["stock"])}
    over = found["stock"]["median_us"] / found["ours"]["median_us"]
    return found | {"over_stock": round(over, 3)}


def mean(rows) -> float:
    """The geometric mean of stock's time over ours."""
    return math.exp(sum(math.log(row["over_stock"]) for row in rows) / len(rows))


def table(rows, title: str) -> Table:
    view = Table(title=title)
    view.add_column("layer")
    for heading in ("ours, µs", "stock, µs", "stock / ours"):
        view.add_column(heading, justify="right")
    for row in rows:
        times = [f"{row[side]['median_us']:.1f}" for side in ("ours", "stock")]
        view.add_row(row["name"], *times, f"{row['over_stock']:.2f}")
    view.add_row("geometric mean", "", "", f"{mean(rows):.2f}")
    return view


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--table", default="resnet50_v1", choices=workloads.TABLES)
    add("--rows", help="some rows of the table, by name")
    add("--batch", default="8")
    add("--dtype", default="f32", choices=[d for d in DTYPES if d != "f64"])
    add("--activation", default="relu", choices=activations.ACTIVATIONS)
    add("--engine", default="auto", choices=plan.ALGORITHMS)
    add("--out", type=Path)
    options = parser.parse_args(arguments)
    dtype = DTYPES[options.dtype]
    console = Console(width=None if Console().is_terminal else 100, soft_wrap=True)
    found = []
    batches = [int(n) for n in options.batch.split(",")]
    names = options.rows.split(",") if options.rows else None
    todo = cases(options.table, ["fprop"], batches, [dtype], names)
    with Progress(console=console, transient=True) as progress:
        for case in progress.track(todo, description="timing"):
            found.append(measure(case, options.activation, options.engine))
    environment = record.environment()
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    for batch in batches:
        same = [row for row in found if row["batch"] == batch]
        title = f"conv + bias + {options.activation}, forward and backward, {dtype}"
        console.print(table(same, f"{title}, batch {batch}"))
    stem = options.out or record.RESULTS / (
        f"layer-{options.table}-{options.dtype}-{record.slug(environment)}"
    )
    path = record.save({"environment": environment, "rows": found}, stem)
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
