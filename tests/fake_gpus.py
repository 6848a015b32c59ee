# SPDX-License-Identifier: Apache-2.0
"""GPUs that are not there, and convolutions to plan for them."""

import functools

import jax
import jax.numpy as jnp

from benchmarks import families, workloads
from benchmarks.drawn import Draw
from benchmarks.window import DIMENSION_NUMBERS, Window
from jax_convbatch._native import targets
from jax_convbatch._plans import met_taps
from jax_convbatch._plans.planners import Problem
from jax_convbatch._select import choices
from jax_convbatch._shapes import geometry

GPUS = {
    "7.5": ("Tesla T4", 40),
    "8.0": ("NVIDIA A100-SXM4-80GB", 108),
    "8.6": ("NVIDIA RTX A6000", 84),
    "8.9": ("NVIDIA GeForce RTX 4090", 128),
    "9.0": ("NVIDIA H200", 132),
    "10.0": ("NVIDIA B200", 148),
    "12.0": ("NVIDIA GeForce RTX 5090", 170),
}
OPS = ("fprop", "dgrad", "wgrad")
DTYPES = ("bfloat16", "float16", "float32")
DRAWS = 40  # of each family


# Filters that reach further than our tiles that read x once for all taps, and channels
# that few draws have: of images, channels, taps, dilation, strides and, of several,
# groups.
FAR = {
    "large images": ((512, 512), 64, 128, (7, 7), (1, 1), (1, 1)),
    "uneven images": ((96, 96), 48, 96, (3, 3), (3, 3), (1, 1)),
    "volumes": ((2, 360, 480), 64, 128, (3, 3, 3), (1, 3, 3), (1, 1, 1)),
    "sequences": ((120000,), 32, 32, (11,), (1,), (1,)),
    "products": ((256, 256), 66, 64, (1, 1), (1, 1), (1, 1)),
    "colours": ((1024, 1024), 32, 3, (3, 3), (1, 1), (1, 1)),
    "odd rows": ((163, 163), 34, 34, (3, 3), (1, 1), (1, 1)),
    "few odd channels": ((163, 163), 5, 34, (5, 5), (1, 1), (1, 1)),
    "odd steps": ((511,), 34, 34, (3,), (1,), (1,)),
    "one input": ((28, 28), 1, 16, (3, 3), (1, 1), (1, 1)),
    "thin products": ((2048,), 30, 64, (1,), (1,), (1,)),
    "colours along depth": ((17, 90, 160), 256, 3, (3, 1, 1), (1, 1, 1), (2, 1, 1)),
    "strides": ((128, 128), 64, 64, (11, 11), (1, 1), (10, 10)),
    "some products": ((8192,), 768, 768, (1,), (1,), (1,)),
    "a mask": ((64, 64), 1, 1, (13, 13), (1, 1), (1, 1)),
    "a volume to one": ((34, 34, 34), 12, 1, (3, 3, 3), (1, 1, 1), (1, 1, 1)),
    "short sequences": ((160,), 12, 12, (3,), (1,), (1,)),
    "small products": ((28, 28), 192, 24, (1, 1), (1, 1), (1, 1)),
    "deep patches": ((8, 64, 64), 3, 768, (2, 8, 8), (1, 1, 1), (2, 8, 8)),
    "uneven depthwise": ((112, 112), 40, 40, (3, 3), (1, 1), (1, 1), 40),
}


def on(monkeypatch, capability):
    """JAX's first GPU is one of these, and nothing was measured on it."""
    name, count = GPUS[capability]
    monkeypatch.setattr(choices, "measured", lambda *_: ())
    monkeypatch.setattr(targets, "_gpu", lambda: targets.Gpu(name, capability, count))


def _geometry(shape, window):
    numbers = jax.lax.conv_dimension_numbers(
        shape["x"], shape["w"], DIMENSION_NUMBERS[window.rank]
    )
    return geometry.from_lax(
        *(shape["x"], shape["w"], shape["y"]),
        window_strides=window.strides,
        padding=window.padding,
        lhs_dilation=window.lhs_dilation,
        rhs_dilation=window.rhs_dilation,
        dimension_numbers=numbers,
        feature_group_count=window.groups,
    )


def _far(name):
    size, c, k, taps, dilation, strides, *groups = FAR[name]
    ones = (1,) * len(size)
    whole = taps == strides  # patches have no padding
    reach = (
        0 if whole else (t - 1) * d // 2 for t, d in zip(taps, dilation, strict=True)
    )
    padding = tuple((r, r) for r in reach)
    window = Window(strides, padding, ones, dilation, *(groups or [1]))
    draw = Draw("far", 0, name, 2, size, c, k, taps, window, "float32", True)
    return _geometry(draw.shape, window)


@functools.cache
def geometries():
    """Of every table of the benchmarks, drawn from every family, and FAR."""
    found = {f"far, {name}": _far(name) for name in FAR}
    for rows, _ in workloads.TABLES.values():
        for name, (batches, row) in rows.items():
            for n in batches:
                shape = dict(zip("xwy", workloads.shapes(n, row), strict=True))
                found[f"{name} of {n}"] = _geometry(shape, Window.of_row(row))
    for family in families.FAMILIES:
        for draw in families.draws(family, 0, DRAWS):
            found[draw.name] = _geometry(draw.shape, draw.window)
    return found


def problems(dtypes=DTYPES):
    """(name, `Problem` on CUDA) of each geometry, as it is planned."""
    for name, given in geometries().items():
        g = met_taps.geometry(given)
        for op in OPS:
            for dtype in map(jnp.dtype, dtypes):
                yield f"{op} {dtype} {name}", Problem(op, g, dtype, dtype, "cuda")
