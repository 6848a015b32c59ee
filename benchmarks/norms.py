# SPDX-License-Identifier: Apache-2.0
"""Group norm, SiLU and a convolution, beside the convolution alone and stock JAX.

    python -m benchmarks norms [--batch 8] [--dtype bf16] [--rows 64_320,32_640]

A row is a 3x3 layer of a U-Net or of an image autoencoder, of stride 1. A group norm of
32 groups and SiLU come before it; the sums for the next norm are taken after it. Sides:
`ours`, by `jax_convbatch.norm_act_conv`, from sums that the layer before made; `conv`,
our convolution alone; `stock`, separate calls of JAX, where the norm sums x itself and
nothing follows the convolution. All run forward; then ours and stock with the gradients
of x, w, gamma and beta. Prints a table and writes STEM.json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jax_convbatch as jcb
from benchmarks import record
from benchmarks.cases import DTYPES, names
from benchmarks.jax_side import ProgramSide
from benchmarks.layer import TOLERANCE, difference
from jax_convbatch import norms
from jax_convbatch._tune import timing

# (H = W, C, K) of x and y: Stable Diffusion's U-Net at latents of 64x64, then the
# decoder of its autoencoder (arXiv:2112.10752).
ROWS = {
    "64_320": (64, 320, 320),
    "64_640_320": (64, 640, 320),
    "32_640": (32, 640, 640),
    "32_1280_640": (32, 1280, 640),
    "16_1280": (16, 1280, 1280),
    "8_1280": (8, 1280, 1280),
    "64_512": (64, 512, 512),
    "128_512": (128, 512, 512),
    "256_256": (256, 256, 256),
    "512_128": (512, 128, 128),
}
GROUPS = 32
CALLS = 8
MOST_BYTES = 4e9  # of the calls' operands and results together


def conv_alone(x, w, gamma, beta, sums):
    return jcb.conv(x, w)


def ours(x, w, gamma, beta, sums):
    scale, shift = norms.scale_and_shift(sums, x.shape, gamma, beta)
    y, after = jcb.norm_act_conv(
        x, w, scale=scale, shift=shift, activation="silu", statistics=GROUPS
    )
    return y, after


def stock(x, w, gamma, beta, sums):
    """As networks have it: GroupNorm in f32, rounded, SiLU, convolution."""
    n, *_, c = x.shape
    wide = x.astype("float32").reshape(n, -1, GROUPS, c // GROUPS)
    mean = wide.mean((1, 3), keepdims=True)
    variance = jnp.maximum(0, (wide * wide).mean((1, 3), keepdims=True) - mean**2)
    h = ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    h = jax.nn.silu((h * gamma + beta).astype(x.dtype))
    return jax.lax.conv_general_dilated(
        h, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def trained(layer: Callable) -> Callable:
    """Its gradients by x, w, gamma and beta, for a cotangent like x of y."""

    def gradients(x, w, gamma, beta, dy):
        def of_operands(x, w, gamma, beta):
            if layer is stock:
                return stock(x, w, gamma, beta, None)
            # The sums' gradient is a part of x's.
            sums = norms.statistics_of(x, GROUPS)
            return ours(x, w, gamma, beta, sums)[0]

        return jax.vjp(of_operands, x, w, gamma, beta)[1](dy)

    return gradients


def measure(name: str, batch: int, dtype: str) -> dict:
    """One row of the result.

    Raises:
      SystemExit: the sides' results differ.
    """
    size, c, k = ROWS[name]
    shapes = (batch, size, size, c), (3, 3, c, k)
    moved = batch * size * size * (2 * c + k) * np.dtype(dtype).itemsize
    calls = max(1, min(CALLS, int(MOST_BYTES / moved)))
    make = jax.jit(partial(_operands, *shapes, dtype))
    sets = [make(key) for key in jax.random.split(jax.random.key(0), calls)]
    result = {"name": name, "row": ROWS[name], "batch": batch, "dtype": dtype}
    ways = {"ours": ours, "conv": conv_alone, "stock": stock}
    forward = [(x, w, *rest, sums) for x, w, *rest, sums, _ in sets]
    backward = [(x, w, *rest, dy) for x, w, *rest, _, dy in sets]
    for what, given, some in (
        ("forward", forward, tuple(ways)),
        ("training", backward, ("ours", "stock")),
    ):
        wanted = {n: trained(ways[n]) if what == "training" else ways[n] for n in some}
        sides = [ProgramSide(n, call, given) for n, call in wanted.items()]
        outs = [jax.tree.leaves(s.out[0]) for s in sides if s.name != "conv"]
        found = np.array([difference(*both) for both in zip(*outs, strict=False)])
        if not (found < 4 * TOLERANCE[dtype]).all():
            raise SystemExit(f"{name}, {what}: the results differ by {found}")
        times = timing.microseconds(sides, seconds=0.03)
        result[what] = {n: timing.summary(times[n]) for n in some}
    return result | ratios(result)


def ratios(row: dict) -> dict:
    us = {w: {n: t["median_us"] for n, t in row[w].items()} for w in WHAT}
    return {
        "over_conv": round(us["forward"]["ours"] / us["forward"]["conv"], 3),
        "over_stock": round(us["forward"]["stock"] / us["forward"]["ours"], 3),
        "trained_over_stock": round(
            us["training"]["stock"] / us["training"]["ours"], 3
        ),
    }


WHAT = ("forward", "training")
RATIOS = ("over_conv", "over_stock", "trained_over_stock")


def _operands(x_shape, w_shape, dtype, key):
    keys = jax.random.split(key, 5)
    normal = partial(jax.random.normal, dtype="float32")
    x = normal(keys[0], x_shape).astype(dtype)
    w = (normal(keys[1], w_shape) / math.sqrt(math.prod(w_shape[:-1]))).astype(dtype)
    gamma, beta = (normal(k, (x_shape[-1],)) for k in keys[2:4])
    dy = normal(keys[4], (*x_shape[:-1], w_shape[-1])).astype(dtype)
    return x, w, 1 + gamma / 4, beta / 4, norms.statistics_of(x, GROUPS), dy


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks norms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES, *DTYPES.values()])
    parser.add_argument("--rows", type=names(ROWS), default=list(ROWS))
    parser.add_argument("--out", type=Path, help="path without suffix")
    options = parser.parse_args(arguments)
    dtype = DTYPES.get(options.dtype, options.dtype)
    environment = record.environment()
    rows = [
        measure(name, options.batch, dtype) for name in track(options.rows, "norms")
    ]
    view = Table(title=f"group norm, SiLU, 3x3, {dtype}, batch {options.batch}")
    headings = ("conv, µs", "ours, µs", "stock, µs", "ours / conv", "stock / ours")
    view.add_column("layer")
    for heading in (*headings, "trained, ours", "stock", "stock / ours"):
        view.add_column(heading, justify="right")
    for row in rows:
        forward, training = row["forward"], row["training"]
        cells = [f"{forward[n]['median_us']:.1f}" for n in ("conv", "ours", "stock")]
        cells += [f"{row[ratio]:.2f}" for ratio in RATIOS[:2]]
        cells += [f"{training[n]['median_us']:.1f}" for n in ("ours", "stock")]
        view.add_row(row["name"], *cells, f"{row[RATIOS[2]]:.2f}")
    console = Console(width=None if Console().is_terminal else 120, soft_wrap=True)
    console.print(view)
    means = {n: float(np.exp(np.mean(np.log([r[n] for r in rows])))) for n in RATIOS}
    console.print("; ".join(f"{n} {mean:.3f}" for n, mean in means.items()))
    stem = options.out or record.RESULTS / f"norms-{record.slug(environment)}"
    result = {"environment": environment, "rows": rows, "means": means}
    console.print(f"wrote {record.save(result, stem)}")
