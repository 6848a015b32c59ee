"""How much of the CPU engine's time is its BLAS, and how it stands to jax.lax.

    python -m benchmarks.cpu_layers [--batch 8] [--rows NAME,...] [--out STEM]

For fprop, dgrad and wgrad of every ResNet-50 layer, float32: the time of
`im2col_gemm`, the share of it that its handler spends in matrix products (by the
handler's own clock; the rest is unrolling and gathering), and the time of jax.lax.
Prints a table, writes STEM.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import harness
from benchmarks.workloads import RESNET50_V1, arguments, flops, shapes
from jax_convbatch import _cpu

OPS = ("fprop", "dgrad", "wgrad")


def calls(engine: str, op: str, row, x, w, dy):
    """A jitted operation and its arguments; gradients as a training step has them."""

    def conv(x, w):
        return jcb.conv(x, w, algorithm=engine, **arguments(row))

    if op == "fprop":
        return jax.jit(conv), (x, w)
    wanted = 0 if op == "dgrad" else 1
    return jax.jit(lambda x, w, dy: jax.vjp(conv, x, w)[1](dy)[wanted]), (x, w, dy)


def measure(op: str, name: str, batch: int) -> dict:
    row = RESNET50_V1[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, dy = (
        jax.random.normal(key, shape)
        for key, shape in zip(keys, shapes(batch, row), strict=True)
    )
    result: dict = {"op": op, "name": name, "batch": batch}
    outputs = {}
    for engine in ("im2col_gemm", "xla"):
        call, args = calls(engine, op, row, x, w, dy)
        outputs[engine] = jax.block_until_ready(call(*args))
        before = _cpu.times()
        times = harness.microseconds(call, *args, seconds=0.1, repeats=5)
        result[engine] = harness.summary(times)
        after = _cpu.times()
        if engine == "im2col_gemm":
            spent = {name: after[name] - before[name] for name in after}
            result["blas_share"] = round(spent["products"] / spent["handlers"], 3)
    error = jnp.linalg.norm(outputs["im2col_gemm"] - outputs["xla"])
    result["difference"] = float(error / jnp.linalg.norm(outputs["xla"]))
    if not result["difference"] < 1e-5:
        raise SystemExit(f"{op} of {name} differs from jax.lax: {result}")
    ours = result["im2col_gemm"]["median_us"]
    result["over_xla"] = round(result["xla"]["median_us"] / ours, 3)
    result["gflops"] = round(flops(batch, row) / ours / 1e3, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rows", default=",".join(RESNET50_V1))
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "cpu_layers")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    cases = [(op, name) for name in options.rows.split(",") for op in OPS]
    console = Console(width=110)
    rows = []
    with Progress(console=console, transient=True) as progress:
        for op, name in progress.track(cases, description="timing"):
            rows.append(measure(op, name, options.batch))
    view = Table(title=f"float32, batch {options.batch}")
    view.add_column("layer")
    view.add_column("op")
    for heading in (
        "im2col_gemm, µs",
        "GFLOP/s",
        "in BLAS",
        "xla, µs",
        "xla / ours",
    ):
        view.add_column(heading, justify="right")
    for row in rows:
        view.add_row(
            row["name"],
            row["op"],
            f"{row['im2col_gemm']['median_us']:.0f}",
            f"{row['gflops']:.0f}",
            f"{row['blas_share']:.0%}",
            f"{row['xla']['median_us']:.0f}",
            f"{row['over_xla']:.2f}",
        )
    environment = harness.environment()
    console.print(view)
    path = harness.save({"environment": environment, "rows": rows}, options.out)
    least = min(rows, key=lambda row: row["blas_share"])
    console.print(
        f"least BLAS share {least['blas_share']:.0%} ({least['name']}, "
        f"{least['op']}); wrote {path}"
    )


if __name__ == "__main__":
    main()
