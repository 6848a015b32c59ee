# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution, with bias and SiLU: ours beside plain passes and JAX.

    python -m benchmarks causal [--rows 8x2048x4352,...] [--seed 0 --count 8]
                                [--dtype bf16] [--op forward,backward,both,update]

A row is N x L x C with 4 taps, and then come random ones: any taps, dilation and
segments. `forward` stands beside a jitted pass that reads x and writes as much;
`backward`, with the gradients of x, w and bias, beside one that reads x and dy and
writes as much as dx; `both` beside the same with shifts in jax.numpy, and beside
`jax.lax`'s depthwise convolution, which is left out where a call would take over
--slow seconds. `update` is one token of each sample, in several layers and steps of
one program, beside a pass over state, x and y and beside jax.numpy.

Every side but the passes is checked on every row against jax.numpy's. A side or row
that fails says so, and the table goes on. Prints the rows, the geometric means and the
worst rows; writes STEM.json and STEM.png. --limit begins no row after so many seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks import causal_cases, causal_report, causal_sides, record
from benchmarks.cases import DTYPES, names
from benchmarks.causal_cases import Case, Update
from benchmarks.causal_sides import LeftOut, UpdateSide
from benchmarks.check import WrongResult
from benchmarks.jax_side import compiled
from benchmarks.layer import TOLERANCE, LayerSide
from benchmarks.range_row import told
from jax_convbatch._tune import timing

BLOCK = 8  # rows that are compiled, in threads, before the first of them is timed
# The sides of each operation, which take turns.
TURNS = {
    "forward": ("copy", "forward"),
    "backward": ("add", "backward"),
    "both": ("ours", "jnp", "lax"),
}
OPS = (*TURNS, "update")
# Which of (y, dx, dw, db) a side returns.
RESULTS = {"forward": slice(1), "backward": slice(1, 4)}
# Of each ratio the side above and ours below; a share of a pass, or a speed-up.
RATIOS = {
    "forward_of_copy": ("copy", "forward"),
    "backward_of_add": ("add", "backward"),
    "over_jnp": ("jnp", "ours"),
    "over_lax": ("lax", "ours"),
    "update_of_copy": ("copy", "update"),
    "update_over_jnp": ("jnp", "update"),
}


class Prepared:
    """A row, and the programs of its sides, compiled."""

    def __init__(
        self, case: Case | Update, ops: list[str], slow: float | None, stock: Executor
    ):
        """`slow`: seconds from which a call of `jax.lax` is left out; None: all."""
        self.case, self._ops = case, ops
        self.row: dict[str, Any] = {**case.describe(), "sides": {}}
        self.sides: dict[str, Any] = {}
        self._lax: Future[LayerSide] | None = None
        if isinstance(case, Update):
            return  # with its operands, which are donated
        if slow is not None and "both" in ops:
            self._lax = stock.submit(causal_sides.lax_side, case, slow)
        wanted = {"jnp", *(name for op in ops for name in TURNS.get(op, ()))}
        for name, call in causal_sides.calls(case).items():
            if name in wanted:
                with self.on(name):
                    made = LayerSide(name, call, case.shapes(), case.sets())
                    self.sides[name] = made

    @contextlib.contextmanager
    def on(self, name: str | None) -> Iterator[None]:
        """An error within ends that side's part; None: it is the row's."""
        at = self.row if name is None else self.row["sides"].setdefault(name, {})
        try:
            yield
        except LeftOut as reason:
            at["left_out"] = str(reason)
        except Exception as error:
            at["failed"] = told(error)
            self.sides.pop(name, None)

    def turns(self) -> list[tuple[str, ...]]:
        if isinstance(self.case, Update):
            return [("copy", "update", "jnp")]
        return [TURNS[op] for op in self._ops if op in TURNS]

    def fill(self) -> None:
        """Gives the sides operands, and drops those whose results are wrong."""
        if isinstance(self.case, Update):
            operands = self.case.operands()
            for name, step in causal_sides.UPDATES.items():
                with self.on(name):
                    made = UpdateSide(name, step, self.case, operands)
                    self.sides[name] = made
        else:
            if self._lax:
                with self.on("lax"):
                    self.sides["lax"] = self._lax.result()
            sets = self.case.operands()
            for side in self.sides.values():
                side.take(sets)
        if "jnp" not in self.sides:
            raise RuntimeError("nothing to compare with")
        expected = self.sides["jnp"].once()
        for name, side in list(self.sides.items()):
            if name in ("copy", "add", "jnp"):
                continue
            with self.on(name):
                error = _check(name, side.once(), expected, self.case.dtype)
                self.row["sides"][name]["error"] = error


def measure(prepared: Prepared, seconds: float, repeats: int) -> dict:
    """The row, as far as it could be measured."""
    row, sides = prepared.row, prepared.sides
    with prepared.on(None):
        prepared.fill()
        for turn in prepared.turns():
            found = [sides[name] for name in turn if name in sides]
            for name, times in timing.microseconds(found, seconds, repeats).items():
                row["sides"].setdefault(name, {}).update(timing.summary(times))
    prepared.sides = {}  # they hold operands
    times = {n: s["median_us"] for n, s in row["sides"].items() if "median_us" in s}
    row["ratios"] = {
        ratio: round(times[above] / times[below], 4)
        for ratio, (above, below) in RATIOS.items()
        if above in times and below in times
    }
    return row


def _check(name: str, results, expected, dtype: str) -> float:
    """The largest difference of a result from that expected.

    Raises:
      WrongResult: it is too large.
    """
    expected = expected[RESULTS.get(name, slice(None))]
    found = [_apart(*pair) for pair in zip(results, expected, strict=True)]
    error = float(np.max(np.array(found)))
    if not error < TOLERANCE[dtype]:
        shown = ", ".join(f"{float(e):.2g}" for e in found)
        raise WrongResult(f"{name} differs from jax.numpy's by {shown}")
    return round(error, 6)


@jax.jit
def _apart(a, b):
    """The largest difference over the largest value."""
    a, b = a.astype("float32"), b.astype("float32")
    return abs(a - b).max() / jnp.maximum(abs(b).max(), 1e-30)


def options_of(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks causal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, rows = parser.add_argument, causal_cases.ROWS
    add("--rows", type=names([*rows, "none"]), default=list(rows))
    add("--seed", type=int, default=0)
    add("--count", type=int, default=8, help="draws")
    add("--largest", type=float, default=math.inf, metavar="BYTES", help="x of a draw")
    add("--dtype", default="bf16", choices=[d for d in DTYPES if d != "f64"])
    add("--op", type=names(OPS), default=list(OPS), help=", ".join(OPS))
    add("--peers", default="lax", choices=("lax", "none"))
    add("--slow", type=float, default=2, metavar="SECONDS", help="a call of jax.lax")
    add("--seconds", type=float, default=0.01, help="of one timing")
    add("--repeats", type=int, default=3)
    add("--limit", type=float, default=math.inf, metavar="SECONDS")
    add("--out", type=Path, help="path without suffix (benchmarks/results/...)")
    return parser.parse_args(arguments)


def cases(options: argparse.Namespace) -> list[Case | Update]:
    """Those that the options ask for; the updates first, as they take no time."""
    dtype = DTYPES[options.dtype]
    found: list[Case | Update] = []
    if "update" in options.op:
        found += causal_cases.updates(dtype)
    if options.op != ["update"]:
        listed = [name for name in options.rows if name != "none"]
        found += causal_cases.listed(listed, dtype)
        found += causal_cases.draws(options.seed, options.count, dtype, options.largest)
    return found


def main(arguments=None) -> None:
    options = options_of(arguments)
    console = Console(width=None if Console().is_terminal else 150, soft_wrap=True)
    start, rows = time.perf_counter(), []
    environment, todo = record.environment(), cases(options)
    stem = options.out or record.RESULTS / f"causal-{record.slug(environment)}"
    slow = None if options.peers == "none" else options.slow

    def over() -> bool:
        return time.perf_counter() - start > options.limit

    def prepare(case: Case | Update, stock: Executor) -> Prepared:
        return Prepared(case, options.op, slow, stock)

    def result() -> dict:
        return {
            "environment": environment,
            "table": "causal",
            "seed": options.seed,
            "seconds_taken": round(time.perf_counter() - start, 1),
            "summary": causal_report.summary(rows),
            "rows": rows,
        }

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("timing", total=len(todo))
        for begin in range(0, len(todo), BLOCK):
            if over():
                break
            ready = compiled(prepare, todo[begin : begin + BLOCK], progress)
            while ready and not over():
                prepared = ready.pop(0)
                progress.update(task, description=prepared.case.name)
                rows.append(measure(prepared, options.seconds, options.repeats))
                progress.advance(task)
            record.save(result(), stem)
    found = result()
    causal_report.show(console, found)
    if len(rows) < len(todo):
        console.print(f"{len(rows)} of {len(todo)} rows")
    written = [record.save(found, stem), causal_report.draw(found, stem)]
    console.print("wrote " + " and ".join(map(str, written)))
