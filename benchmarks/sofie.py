"""One GEMM a batch against one GEMM a sample: the gemmStridedBatched study.

    python -m benchmarks.sofie [--out STEM]

times `per_sample`, `im2col_gemm` and `xla` (jax.lax) in one run on the shapes of
ROOT/SOFIE's study, float32 at default precision: a stack of eight layers at
several batch sizes, and the time of one layer for four sizes at batch 8. That is an
eighth of a stack's time too: a program of a single layer would time the 30 µs or so
that JAX needs to start any program. Results are checked before they are timed:
whole numbers exactly, and im2col_gemm against per_sample bit for bit.
Writes STEM.json and STEM.png and prints the tables.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import harness
from benchmarks.workloads import (
    SOFIE_BATCHES,
    SOFIE_LAYERS,
    SOFIE_SINGLE,
    SOFIE_SINGLE_BATCH,
    SOFIE_STACK,
    arguments,
    shapes,
)

ENGINES = ("per_sample", "im2col_gemm", "xla")


def stack(engine: str, row, x, filters):
    for w in filters:
        x = jcb.conv(x, w, algorithm=engine, **arguments(row))
    return x


def check(batch: int, row) -> None:
    """Exits where an engine is wrong on whole numbers."""
    rng = np.random.default_rng(0)
    x, w = (harness.integers(rng, shape) for shape in shapes(batch, row)[:2])
    expected = harness.exact_fprop(x, w, row)
    for engine in ENGINES:
        got = np.asarray(jax.jit(partial(stack, engine, row))(x, [w]))
        if not np.array_equal(got, expected):
            sys.exit(f"{engine} is wrong at batch {batch}, row {row}")


def measure(name: str, batch: int, row, per: int) -> dict:
    """Times of every engine on a stack of equal layers, divided by `per`."""
    check(batch, row)
    x_shape, w_shape, _ = shapes(batch, row)
    keys = jax.random.split(jax.random.key(0), SOFIE_LAYERS + 1)
    x = jax.random.normal(keys[0], x_shape)
    scale = np.prod(w_shape[:3]) ** -0.5
    filters = [scale * jax.random.normal(key, w_shape) for key in keys[1:]]
    result: dict = {"name": name, "batch": batch, "row": row}
    outputs = {}
    for engine in ENGINES:
        call = jax.jit(partial(stack, engine, row))
        outputs[engine] = call(x, filters)
        times = harness.microseconds(call, x, filters)
        result[engine] = harness.summary([t / per for t in times])
    if not bool(jnp.all(outputs["im2col_gemm"] == outputs["per_sample"])):
        sys.exit(f"im2col_gemm and per_sample differ on {name} at batch {batch}")
    ours = result["im2col_gemm"]["median_us"]
    for peer in ("per_sample", "xla"):
        result[f"over_{peer}"] = round(result[peer]["median_us"] / ours, 3)
    return result


def table(title: str, rows: list[dict]) -> Table:
    view = Table(title=title)
    view.add_column("layers")
    for heading in ("batch", *(f"{e}, µs" for e in ENGINES)):
        view.add_column(heading, justify="right")
    for peer in ("per_sample", "xla"):
        view.add_column(f"{peer} / im2col_gemm", justify="right")
    for row in rows:
        times = [
            f"{row[e]['median_us']:.1f} ±{row[e]['spread_us'] / 2:.1f}" for e in ENGINES
        ]
        view.add_row(
            row["name"],
            str(row["batch"]),
            *times,
            f"{row['over_per_sample']:.2f}",
            f"{row['over_xla']:.2f}",
        )
    return view


def draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for axis, part in zip(axes, ("stack", "single"), strict=True):
        rows = result[part]
        labels = [f"{row['name']}\nbatch {row['batch']}" for row in rows]
        for i, engine in enumerate(ENGINES):
            heights = [row[engine]["median_us"] for row in rows]
            at = np.arange(len(rows)) + (i - 1) * 0.27
            bars = axis.bar(at, heights, 0.25, label=engine)
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
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
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="path without suffix (default: benchmarks/results/...)"
    )
    options = parser.parse_args()
    environment = harness.environment()
    console = Console(width=110, soft_wrap=True)
    cases = [("stack", "stack", b, SOFIE_STACK, 1) for b in SOFIE_BATCHES]
    cases += [
        ("single", name, SOFIE_SINGLE_BATCH, row, SOFIE_LAYERS)
        for name, row in SOFIE_SINGLE.items()
    ]
    result: dict = {"environment": environment, "stack": [], "single": []}
    with Progress(console=console, transient=True) as progress:
        for part, *case in progress.track(cases, description="timing"):
            result[part].append(measure(*case))
    stem = options.out or harness.RESULTS / f"sofie-{harness.slug(environment)}"
    written = [harness.save(result, stem), stem.with_suffix(".png")]
    draw(result, written[1])
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    console.print(table(f"{SOFIE_LAYERS} layers in a row", result["stack"]))
    console.print(table(f"one layer: 1/{SOFIE_LAYERS} of a stack", result["single"]))
    console.print(f"wrote {written[0]} and {written[1]}")


if __name__ == "__main__":
    main()
