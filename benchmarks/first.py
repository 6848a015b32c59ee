# SPDX-License-Identifier: Apache-2.0
"""`range --first`: times to the first result, forward and gradients.

Each side runs in a new process, all draws one after the other, without anything
beside them and without a compilation cache. A time is that of a new `jax.jit` of
(y, dx, dw): tracing, compiling and the first run. Imports and operands are not in it,
what is made lazily is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import record
from benchmarks.drawn import Draw
from benchmarks.jax_side import convolution
from benchmarks.numbers import Maker

SIDES = ("ours", "xla")
ROOT = Path(__file__).parent.parent


def seconds(draw: Draw, engine: str) -> float:
    """To the first result of this draw by that engine."""
    conv = convolution(engine, draw.window, "default")

    def both(x, w, dy):
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    operands = [
        Maker(shape, draw.dtype)("uniform", seed)
        for seed, shape in enumerate(draw.shape.values())
    ]
    jax.block_until_ready(operands)
    start = time.perf_counter()
    jax.block_until_ready(jax.jit(both)(*operands))
    return time.perf_counter() - start


def one_side(drawn: list[Draw], engine: str, limit: float) -> list[dict]:
    """What each draw took, or why it did not; no more begin after `limit` seconds."""
    start, found = time.perf_counter(), []
    options = {"console": Console(stderr=True), "transient": True}
    # A thread that draws the bar would run beside what is timed.
    for draw in track(drawn, engine, auto_refresh=False, **options):
        if time.perf_counter() - start > limit:
            break
        try:
            took = {"seconds": round(seconds(draw, engine), 4)}
        except Exception as error:
            took = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        found.append({"name": draw.name} | took)
    return found


def in_process(side: str, arguments: list[str], folder: Path) -> dict:
    """What a new process of that side wrote."""
    stem = folder / side
    more = ["--side", side, "--out", str(stem)]
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    program = [sys.executable, "-m", "benchmarks", "range", *arguments, *more]
    subprocess.run(program, check=True, cwd=ROOT, env=env)
    return json.loads(record.json_path(stem).read_text())


def summed(rows: list[dict]) -> dict:
    """Seconds of each side over the draws that ran on both, by family and of all."""
    both = [r for r in rows if all("seconds" in r[side] for side in SIDES)]
    found = {}
    for family in [*dict.fromkeys(row["family"] for row in both), "all"]:
        own = [row for row in both if family in ("all", row["family"])]
        sums = {s: round(sum(row[s]["seconds"] for row in own), 3) for s in SIDES}
        share = round(sums["ours"] / sums["xla"], 4) if own else None
        found[family] = {"draws": len(own), **sums, "share": share}
    return found


def show(console: Console, result: dict) -> None:
    title = "seconds to the first result, forward and gradients, sums"
    view = Table(title=title, title_justify="left")
    view.add_column("family")
    for heading in ("draws", "ours", "jax.lax", "ours / jax.lax"):
        view.add_column(heading, justify="right")
    for family, sums in result["sums"].items():
        share = "" if sums["share"] is None else f"{sums['share']:.3f}"
        times = [f"{sums[side]:.2f}" for side in SIDES]
        view.add_row(family, str(sums["draws"]), *times, share)
    console.print(view)
    for row in result["rows"]:
        for side in SIDES:
            if "failed" in row[side]:
                console.print(f"{row['name']} {side}: {row[side]['failed']}")


def main(
    options: argparse.Namespace,
    arguments: list[str],
    drawn: list[Draw],
    console: Console,
) -> None:
    if options.side:
        engine = options.engine if options.side == "ours" else "xla"
        rows = one_side(drawn, engine, options.limit)
        made = {"environment": record.environment(), "rows": rows}
        record.save(made, options.out)
        return
    # This process keeps off the device, which the others want for themselves.
    with tempfile.TemporaryDirectory() as folder:
        made = {side: in_process(side, arguments, Path(folder)) for side in SIDES}
    took = {side: {r.pop("name"): r for r in made[side]["rows"]} for side in SIDES}
    rows = [
        {**draw.describe(), **{side: took[side][draw.name] for side in SIDES}}
        for draw in drawn
        if all(draw.name in took[side] for side in SIDES)
    ]
    environment = made["ours"]["environment"]
    result = {"environment": environment, "sums": summed(rows), "rows": rows}
    show(console, result)
    name = f"range-first-{record.slug(environment)}"
    path = record.save(result, options.out or record.RESULTS / name)
    console.print(f"wrote {path}")
