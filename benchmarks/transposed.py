# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions, value and gradients, beside `jax.lax.conv_transpose`.

    python -m benchmarks transposed [--batch 8] [--dtype f32] [--rows 28_4x4s2_64_32]

x [N, H, W, C] and w [R, S, C, K], padding "SAME": y is `stride` times as high and
wide as x. The gradients are those of x and w. On a GPU a program is eight calls with
operands of their own, which hides what starting it costs. Prints a table and writes
STEM.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jax_convbatch as jc
from benchmarks import record
from benchmarks.cases import DTYPES, names
from benchmarks.jax_side import ProgramSide
from benchmarks.layer import TOLERANCE, difference
from jax_convbatch._tune import timing

# (H, W, C, K, R, S, stride) of x and w: upsampling of a decoder, of a generator
# (Radford et al., arXiv:1511.06434), of a U-Net (arXiv:1505.04597).
ROWS = {
    "28_4x4s2_64_32": (28, 28, 64, 32, 4, 4, 2),
    "8_4x4s2_512_256": (8, 8, 512, 256, 4, 4, 2),
    "16_4x4s2_256_128": (16, 16, 256, 128, 4, 4, 2),
    "32_2x2s2_512_256": (32, 32, 512, 256, 2, 2, 2),
}
SIDES = {"ours": jc.conv_transpose, "xla": jax.lax.conv_transpose}
WHAT = ("value", "gradients")
CALLS = 8


def called(side: str, what: str, stride: int) -> Callable:
    """f(x, w, dy): the value or the gradients, as a sequence."""
    conv = partial(SIDES[side], strides=(stride, stride), padding="SAME")
    if what == "gradients":
        return jax.grad(lambda x, w, dy: (conv(x, w) * dy).sum(), argnums=(0, 1))
    return lambda x, w, dy: (conv(x, w),)


def measure(name: str, batch: int, dtype: str, what: str) -> dict:
    """One row of the result.

    Raises:
      SystemExit: the sides' results differ.
    """
    h, w, c, k, r, s, stride = ROWS[name]
    shapes = (batch, h, w, c), (r, s, c, k), (batch, h * stride, w * stride, k)
    calls = CALLS if jax.default_backend() == "gpu" else 1
    sets = [
        [jax.random.normal(key, n, dtype) for key, n in zip(keys, shapes, strict=True)]
        for keys in jax.random.split(jax.random.key(0), (calls, len(shapes)))
    ]
    sides = [ProgramSide(n, called(n, what, stride), sets) for n in SIDES]
    found = np.array(list(map(difference, sides[0].out[0], sides[1].out[0])))
    if not (found < TOLERANCE[dtype]).all():
        raise SystemExit(f"{name}, {what}: the results differ by {found}")
    times = timing.microseconds(sides, seconds=0.1, repeats=9)
    us = {side: timing.summary(times[side]) for side in SIDES}
    ratio = us["xla"]["median_us"] / us["ours"]["median_us"]
    return {
        "name": name,
        "row": ROWS[name],
        "batch": batch,
        "dtype": dtype,
        "what": what,
        **us,
        "over_xla": round(ratio, 3),
    }


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks transposed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", default="f32", choices=[*DTYPES, *DTYPES.values()])
    parser.add_argument("--rows", type=names(ROWS), default=list(ROWS))
    parser.add_argument("--out", type=Path, help="path without suffix")
    options = parser.parse_args(arguments)
    dtype = DTYPES.get(options.dtype, options.dtype)
    environment = record.environment()
    rows = [
        measure(name, options.batch, dtype, what)
        for name, what in track(
            [(name, what) for name in options.rows for what in WHAT],
            "transposed",
        )
    ]
    view = Table(title=f"transposed convolutions, {dtype}, batch {options.batch}")
    for heading in ("layer", "what", "ours, µs", "xla, µs", "xla / ours"):
        view.add_column(heading, justify="left" if heading[-1] in "rt" else "right")
    for row in rows:
        times = [f"{row[side]['median_us']:.1f}" for side in SIDES]
        view.add_row(row["name"], row["what"], *times, f"{row['over_xla']:.2f}")
    Console().print(view)
    stem = options.out or record.RESULTS / f"transposed-{record.slug(environment)}"
    print("wrote", record.save({"environment": environment, "rows": rows}, stem))
