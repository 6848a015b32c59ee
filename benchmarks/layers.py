"""Every ResNet-50 layer, our engine beside jax.lax.

    python -m benchmarks.layers [--batch 8,256] [--dtype float32] [--engine auto]
                                [--op fprop,dgrad,wgrad] [--rows NAME,...] [--out STEM]

times fprop, dgrad and wgrad on JAX's default device in one run, after checking ours
against `jax.lax` (relative error over the whole result). On the CPU it also says
which share of the handlers' time is spent in matrix products, by their own clock;
the rest is unrolling and gathering. On a GPU each time holds the start of a program,
some 30 µs, on both sides: use large batches there. Prints a table, writes STEM.json.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import harness
from benchmarks.workloads import RESNET50_V1, arguments, flops, shapes
from jax_convbatch import plan

OPS = ("fprop", "dgrad", "wgrad")
# Largest relative difference from jax.lax: TF32 rounds f32 operands on a GPU.
TOLERANCE = {"cpu": {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}}
TOLERANCE["gpu"] = {**TOLERANCE["cpu"], "float32": 2e-3}


def operation(engine: str, op: str, row, x, w, dy):
    """A jitted operation and its arguments; gradients as a training step has them."""

    def conv(x, w):
        return jcb.conv(x, w, algorithm=engine, **arguments(row))

    if op == "fprop":
        return jax.jit(conv), (x, w)
    wanted = 0 if op == "dgrad" else 1
    return jax.jit(lambda x, w, dy: jax.vjp(conv, x, w)[1](dy)[wanted]), (x, w, dy)


def handler_times() -> dict[str, float]:
    """Seconds so far in the CPU's handlers; zeros on another device."""
    if jax.default_backend() != "cpu":
        return {"products": 0.0, "handlers": 0.0}
    from jax_convbatch import _cpu

    return dict(_cpu.times())


def measure(op: str, name: str, batch: int, dtype: str, engine: str) -> dict:
    row = RESNET50_V1[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, dy = (
        jax.random.normal(key, shape, dtype)
        for key, shape in zip(keys, shapes(batch, row), strict=True)
    )
    result: dict = {"op": op, "name": name, "batch": batch, "dtype": dtype}
    outputs = {}
    for side, algorithm in (("ours", engine), ("xla", "xla")):
        call, args = operation(algorithm, op, row, x, w, dy)
        if side == "ours":
            (chosen,) = (r for r in jcb.explain(call, *args) if r.op == op)
            result["engine"] = chosen.engine
        outputs[side] = jax.block_until_ready(call(*args)).astype(jnp.float32)
        before = handler_times()
        times = harness.microseconds(call, *args, seconds=0.1, repeats=5)
        result[side] = harness.summary(times)
        spent = {k: v - before[k] for k, v in handler_times().items()}
        if side == "ours" and spent["handlers"] > 0:
            result["blas_share"] = round(spent["products"] / spent["handlers"], 3)
    error = jnp.linalg.norm(outputs["ours"] - outputs["xla"])
    result["difference"] = float(error / jnp.linalg.norm(outputs["xla"]))
    if not result["difference"] < TOLERANCE[jax.default_backend()][dtype]:
        raise SystemExit(f"{op} of {name} differs from jax.lax: {result}")
    ours = result["ours"]["median_us"]
    result["over_xla"] = round(result["xla"]["median_us"] / ours, 3)
    result["tflops"] = round(flops(batch, row) / ours / 1e6, 3)
    return result


def table(rows: list[dict], title: str) -> Table:
    view = Table(title=title)
    for heading in ("layer", "op", "engine"):
        view.add_column(heading)
    for heading in ("ours, µs", "TFLOP/s", "in BLAS", "xla, µs", "xla / ours"):
        view.add_column(heading, justify="right")
    for row in rows:
        view.add_row(
            row["name"],
            row["op"],
            row["engine"],
            f"{row['ours']['median_us']:.1f}",
            f"{row['tflops']:.2f}",
            f"{row['blas_share']:.0%}" if "blas_share" in row else "",
            f"{row['xla']['median_us']:.1f}",
            f"{row['over_xla']:.2f}",
        )
    return view


def mean(rows: list[dict]) -> float:
    """Geometric mean of xla's time over ours."""
    return math.exp(sum(math.log(row["over_xla"]) for row in rows) / len(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", default="8")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCE["gpu"])
    parser.add_argument("--engine", default="auto", choices=plan.ALGORITHMS)
    parser.add_argument("--op", default=",".join(OPS))
    parser.add_argument("--rows", default=",".join(RESNET50_V1))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = [
        (op, name, int(batch), options.dtype, options.engine)
        for batch in options.batch.split(",")
        for name in options.rows.split(",")
        for op in options.op.split(",")
    ]
    environment = harness.environment()
    console = Console(width=110, soft_wrap=True)
    rows = []
    with Progress(console=console, transient=True) as progress:
        for case in progress.track(cases, description="timing"):
            rows.append(measure(*case))
    console.print(", ".join(f"{k} {v}" for k, v in environment.items()))
    for batch in dict.fromkeys(row["batch"] for row in rows):
        part = [row for row in rows if row["batch"] == batch]
        console.print(table(part, f"{options.dtype}, batch {batch}"))
        for op in options.op.split(","):
            same = [row for row in part if row["op"] == op]
            console.print(f"{op}: xla / ours {mean(same):.2f} in the geometric mean")
    slug = harness.slug(environment)
    stem = options.out or harness.RESULTS / f"layers-{options.dtype}-{slug}"
    path = harness.save({"environment": environment, "rows": rows}, stem)
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
