# SPDX-License-Identifier: Apache-2.0
"""Which engine "auto" takes on Hopper for 1x1 convolutions, see `rule_products.py`,
and for some others."""

import jax
import jax.numpy as jnp
import oracle
import pytest
from fake_gpus import on
from problems import CHANNELS_LAST, Problem
from promises import params_of

from jax_convbatch._plans import planners
from jax_convbatch._select import rules


def problem(
    op, n, sizes, c, k, dtype, taps=None, strides=None, pads=None, groups=1, of=None
):
    """`of`: how far x is dilated."""
    ones = (1,) * len(sizes)
    pads = pads or tuple(((t - 1) // 2,) * 2 for t in taps or ones)
    conv = oracle.Conv(strides or ones, pads, of or ones, ones, groups)
    w = (*(taps or ones), c // groups, k)
    case = Problem((n, *sizes, c), w, conv, CHANNELS_LAST[len(sizes)])
    arrays = (jax.ShapeDtypeStruct(shape, dtype) for shape in (case.x, case.w))
    geometry = params_of(case, *arrays).geometry
    dtype = jnp.dtype(dtype)
    return planners.Problem(op, geometry, dtype, dtype, "cuda")


def product(op, size, c, k, dtype, n=64):
    sizes = size if isinstance(size, tuple) else (size, size)
    return problem(op, n, sizes, c, k, dtype)


@pytest.mark.parametrize(
    ("op", "size", "c", "k", "engine"),
    [
        ("fprop", 38, 240, 24, "cudnn"),
        ("fprop", 56, 96, 24, "implicit_gemm"),  # a kernel for few channels
        ("fprop", 150, 24, 136, "implicit_gemm"),  # of large images
        ("fprop", 150, 24, 40, "implicit_gemm"),
        ("fprop", 56, 144, 40, "implicit_gemm"),
        ("fprop", 56, 96, 40, "cudnn"),
        ("fprop", 38, 240, 40, "cudnn"),
        ("fprop", 38, 240, 48, "cudnn"),
        ("fprop", 38, 144, 48, "implicit_gemm"),
        ("fprop", 38, 240, 136, "implicit_gemm"),
        ("fprop", 38, 264, 136, "cudnn"),
        ("fprop", 28, 144, 136, "cudnn"),
        ("fprop", 28, 192, 136, "cudnn"),
        ("fprop", 28, 192, 144, "implicit_gemm"),
        ("fprop", 28, 192, 200, "implicit_gemm"),
        ("fprop", 1, 2048, 136, "implicit_gemm"),
        ("fprop", 7, 2048, 136, "implicit_gemm"),
        ("fprop", (1000,), 512, 72, "implicit_gemm"),
        ("dgrad", 75, 96, 40, "implicit_gemm"),
        ("dgrad", 14, 480, 40, "cudnn"),
        ("dgrad", 14, 184, 40, "implicit_gemm"),
        ("dgrad", 38, 240, 40, "implicit_gemm"),
        ("dgrad", 14, 480, 136, "implicit_gemm"),
        ("dgrad", 38, 240, 24, "implicit_gemm"),
        ("dgrad", 28, 192, 24, "implicit_gemm"),
        ("dgrad", 28, 240, 48, "implicit_gemm"),
        ("dgrad", 56, 136, 24, "implicit_gemm"),
        ("dgrad", 19, 136, 24, "implicit_gemm"),
        ("wgrad", 28, 136, 192, "cudnn"),
        ("wgrad", 7, 1152, 24, "cudnn"),
        ("wgrad", 7, 1152, 32, "implicit_gemm"),
        ("wgrad", 7, 960, 24, "implicit_gemm"),
        ("wgrad", 7, 1280, 8, "implicit_gemm"),
        ("wgrad", 1, 2112, 88, "implicit_gemm"),
        ("wgrad", (1, 64), 1152, 24, "implicit_gemm"),
        ("wgrad", 28, 56, 192, "implicit_gemm"),
        ("wgrad", 28, 136, 768, "implicit_gemm"),
        ("wgrad", 150, 136, 192, "implicit_gemm"),
        ("wgrad", 14, 136, 192, "implicit_gemm"),
        ("wgrad", 28, 144, 192, "implicit_gemm"),
    ],
)
def test_pixels_that_begin_between_sectors(monkeypatch, op, size, c, k, engine):
    on(monkeypatch, "9.0")
    assert rules.engines(product(op, size, c, k, "bfloat16"))[0] == engine


@pytest.mark.parametrize(
    ("size", "c", "k", "engine"),
    [
        (7, 960, 16, "cudnn"),
        (14, 960, 16, "implicit_gemm"),
        (7, 240, 16, "implicit_gemm"),
        (7, 2048, 16, "implicit_gemm"),
        (7, 960, 8, "implicit_gemm"),
        (7, 960, 32, "implicit_gemm"),
        (28, 240, 16, "cudnn"),
        (28, 256, 16, "implicit_gemm"),
        (14, 240, 16, "implicit_gemm"),
        (56, 240, 16, "implicit_gemm"),
    ],
)
def test_products_to_sixteen(monkeypatch, size, c, k, engine):
    on(monkeypatch, "9.0")
    assert rules.engines(product("fprop", size, c, k, "bfloat16"))[0] == engine


@pytest.mark.parametrize(
    ("size", "c", "k", "engine"),
    [
        (28, 192, 112, "cudnn"),
        (28, 192, 128, "cudnn"),
        (28, 128, 512, "cudnn"),
        (28, 128, 520, "implicit_gemm"),
        (28, 192, 192, "implicit_gemm"),
        (28, 64, 192, "cudnn"),
        (28, 60, 192, "implicit_gemm"),
        (19, 672, 112, "implicit_gemm"),
        (14, 480, 40, "cudnn"),
        (14, 440, 40, "implicit_gemm"),
        (5, 480, 40, "implicit_gemm"),
        (28, 480, 40, "implicit_gemm"),
        (28, 192, 40, "implicit_gemm"),
        (14, 672, 112, "cudnn"),
        (14, 704, 112, "implicit_gemm"),
        (14, 480, 192, "implicit_gemm"),  # nine tenths are filled
        (75, 96, 192, "cudnn"),
        (75, 48, 192, "implicit_gemm"),
        (28, 192, 200, "implicit_gemm"),
        (10, 192, 136, "implicit_gemm"),
        ((784,), 192, 112, "implicit_gemm"),
        ((8, 28, 28), 192, 112, "implicit_gemm"),
    ],
)
def test_wgrad_of_uneven_products_in_f32(monkeypatch, size, c, k, engine):
    on(monkeypatch, "9.0")
    assert rules.engines(product("wgrad", size, c, k, "float32"))[0] == engine


def test_wgrad_of_uneven_products_has_pixels_enough(monkeypatch):
    on(monkeypatch, "9.0")
    engines = [
        rules.engines(product("wgrad", 14, 480, 112, "float32", n))[0] for n in (1, 16)
    ]
    assert engines == ["implicit_gemm", "cudnn"]


@pytest.mark.parametrize(
    ("size", "c", "k", "engine"),
    [
        ((64, 64), 4, 1152, "im2col_gemm"),
        ((64, 64), 4, 192, "implicit_gemm"),
        ((16, 16), 8, 96, "implicit_gemm"),
        ((16, 16), 12, 768, "im2col_gemm"),
        ((16, 16), 16, 768, "implicit_gemm"),
        ((16, 16), 16, 192, "implicit_gemm"),
        ((32,), 8, 96, "implicit_gemm"),
        ((8, 16, 16), 8, 96, "implicit_gemm"),
    ],
)
def test_patches_in_f32(monkeypatch, size, c, k, engine):
    on(monkeypatch, "9.0")
    two, none = (2,) * len(size), ((0, 0),) * len(size)
    case = problem("fprop", 256, size, c, k, "float32", two, two, none)
    assert rules.engines(case)[0] == engine


@pytest.mark.parametrize(
    ("size", "c", "k", "dtype", "engine"),
    [
        ((32, 32, 32), 256, 128, "float32", "cudnn"),
        ((16, 32, 32), 128, 72, "float32", "cudnn"),
        ((16, 32, 32), 128, 64, "float32", "implicit_gemm"),
        ((16, 16, 16), 256, 128, "float32", "cudnn"),
        ((16, 16, 15), 256, 128, "float32", "implicit_gemm"),
        ((16, 16, 16), 320, 256, "float32", "implicit_gemm"),
        ((32, 32, 32), 128, 32, "float32", "implicit_gemm"),
        ((32, 32, 32), 96, 64, "float32", "implicit_gemm"),
        ((32, 32, 32), 256, 128, "bfloat16", "implicit_gemm"),
        ((64, 64), 256, 128, "float32", "implicit_gemm"),
    ],
)
def test_dx_of_transposed_patches(monkeypatch, size, c, k, dtype, engine):
    on(monkeypatch, "9.0")
    two, one = (2,) * len(size), ((1, 1),) * len(size)
    case = problem("dgrad", 2, size, c, k, dtype, two, pads=one, of=two)
    assert rules.engines(case)[0] == engine


@pytest.mark.parametrize(
    ("op", "size", "c", "dtype", "engine"),
    [
        ("fprop", 112, 40, "bfloat16", "cudnn"),
        ("fprop", 100, 136, "float16", "cudnn"),
        ("fprop", 99, 40, "bfloat16", "implicit_gemm"),
        ("fprop", 112, 8, "bfloat16", "implicit_gemm"),
        ("fprop", 112, 56, "bfloat16", "implicit_gemm"),
        ("fprop", 112, 168, "bfloat16", "implicit_gemm"),
        ("fprop", 112, 40, "float32", "implicit_gemm"),
        ("dgrad", 112, 40, "bfloat16", "implicit_gemm"),
    ],
)
def test_uneven_depthwise(monkeypatch, op, size, c, dtype, engine):
    on(monkeypatch, "9.0")
    nine = problem(op, 64, (size, size), c, c, dtype, taps=(3, 3), groups=c)
    assert rules.engines(nine)[0] == engine
    far = problem(op, 64, (size, size), c, c, dtype, taps=(5, 5), groups=c)
    assert rules.engines(far)[0] == "implicit_gemm"


@pytest.mark.parametrize(
    ("op", "steps", "n", "engine"),
    [
        ("fprop", 100_000, 1, "cudnn"),
        ("fprop", 65536, 16, "implicit_gemm"),
        ("dgrad", 120_000, 1, "implicit_gemm"),
        ("wgrad", 65536, 16, "cudnn"),
        ("wgrad", 65536, 2, "implicit_gemm"),
    ],
)
def test_half_filled_sequences(monkeypatch, op, steps, n, engine):
    on(monkeypatch, "9.0")
    case = problem(op, n, (steps,), 32, 32, "bfloat16", taps=(11,))
    assert rules.engines(case)[0] == engine


OTHERS = {
    "patches of sixteen elements": (
        ("wgrad", 64, (28, 28), 4, 96, "bfloat16", (2, 2), (2, 2), ((0, 0),) * 2),
        "cudnn",
    ),
    "patches of one channel": (
        ("wgrad", 8, (128, 64), 1, 96, "bfloat16", (4, 4), (4, 4), ((0, 0),) * 2),
        "implicit_gemm",
    ),
    "4x4 patches of colours": (
        ("wgrad", 256, (64, 64), 3, 384, "bfloat16", (4, 4), (4, 4), ((0, 0),) * 2),
        "im2col_gemm",
    ),
    "to fewer channels": (
        ("wgrad", 256, (64, 64), 3, 192, "bfloat16", (4, 4), (4, 4), ((0, 0),) * 2),
        "implicit_gemm",
    ),
    "of more elements": (
        ("wgrad", 64, (112, 112), 3, 512, "bfloat16", (8, 8), (8, 8), ((0, 0),) * 2),
        "implicit_gemm",
    ),
    "4x4 patches in f32": (
        ("wgrad", 64, (64, 64), 3, 1024, "float32", (4, 4), (4, 4), ((0, 0),) * 2),
        "im2col_gemm",
    ),
    "to fewer in f32": (
        ("wgrad", 64, (64, 64), 3, 768, "float32", (4, 4), (4, 4), ((0, 0),) * 2),
        "implicit_gemm",
    ),
    "patches of large columns": (
        ("wgrad", 64, (512, 512), 3, 384, "bfloat16", (4, 4), (4, 4), ((0, 0),) * 2),
        "implicit_gemm",
    ),
    "strided images to colours": (
        ("fprop", 2, (360, 320), 1024, 3, "bfloat16", (3, 3), (2, 2)),
        "cudnn",
    ),
    "small ones": (
        ("fprop", 2, (128, 128), 1024, 3, "bfloat16", (3, 3), (2, 2)),
        "implicit_gemm",
    ),
    "their dx": (
        ("dgrad", 2, (360, 320), 1024, 3, "bfloat16", (3, 3), (2, 2)),
        "implicit_gemm",
    ),
    "long sequences of 32": (
        ("wgrad", 16, (65536,), 32, 32, "bfloat16", (11,)),
        "cudnn",
    ),
    "one of them": (
        ("wgrad", 1, (65536,), 32, 32, "bfloat16", (11,)),
        "implicit_gemm",
    ),
    "dx of volumes": (
        ("dgrad", 1, (9, 90, 80), 64, 32, "bfloat16", (3, 3, 3)),
        "cudnn",
    ),
    "of causal ones": (
        (
            *("dgrad", 1, (9, 90, 80), 64, 32, "bfloat16", (3, 3, 3), (1, 1, 1)),
            ((2, 0), (1, 1), (1, 1)),
        ),
        "implicit_gemm",
    ),
    "volumes to one": (
        ("fprop", 8, (34, 34, 34), 12, 1, "float32", (3, 3, 3)),
        "cudnn",
    ),
    "of larger filters": (
        ("fprop", 8, (34, 34, 34), 12, 1, "float32", (5, 5, 5)),
        "implicit_gemm",
    ),
    "two to many": (
        ("fprop", 8, (34, 34, 34), 2, 34, "float32", (3, 3, 3)),
        "cudnn",
    ),
    "wgrad of strided volumes of 32": (
        ("wgrad", 2, (48, 48, 48), 32, 64, "bfloat16", (3, 3, 3), (2, 2, 2)),
        "cudnn",
    ),
    "of few pixels": (
        ("wgrad", 1, (9, 60, 104), 32, 64, "bfloat16", (3, 3, 3), (1, 2, 2)),
        "implicit_gemm",
    ),
    "of 96": (
        ("wgrad", 2, (24, 48, 48), 96, 96, "bfloat16", (3, 3, 3), (2, 2, 2)),
        "cudnn",
    ),
    "of 96 and many pixels": (
        ("wgrad", 1, (17, 60, 160), 96, 96, "bfloat16", (3, 3, 3), (1, 2, 2)),
        "implicit_gemm",
    ),
    "of 96 to 192 and many": (
        ("wgrad", 2, (64, 64, 64), 96, 192, "bfloat16", (3, 3, 3), (2, 2, 2)),
        "cudnn",
    ),
    "of 160": (
        ("wgrad", 2, (32, 32, 32), 160, 160, "bfloat16", (3, 3, 3), (2, 2, 2)),
        "implicit_gemm",
    ),
    "wgrad of long products": (
        ("wgrad", 1, (65536,), 896, 896, "bfloat16"),
        "cudnn",
    ),
    "of longer ones": (
        ("wgrad", 1, (131072,), 768, 768, "bfloat16"),
        "implicit_gemm",
    ),
    "wgrad of short sequences": (
        ("wgrad", 32, (160,), 12, 12, "float32", (3,)),
        "im2col_gemm",
    ),
    "of three channels to 64": (
        ("wgrad", 8, (512,), 3, 64, "float32", (5,)),
        "implicit_gemm",
    ),
    "of one tap": (
        ("wgrad", 8, (512,), 3, 64, "float32"),
        "im2col_gemm",
    ),
    "dx of mapped stems in f32": (
        (
            *("dgrad", 16, (32, 32), 192, 1024, "float32", (3, 3), None, None),
            64,
        ),
        "implicit_gemm",
    ),
    "mapped stems in f32": (
        (
            *("fprop", 16, (32, 32), 192, 1024, "float32", (3, 3), None, None),
            64,
        ),
        "implicit_gemm",
    ),
    "in 16 bits": (
        (
            *("fprop", 16, (32, 32), 192, 1024, "bfloat16", (3, 3), None, None),
            64,
        ),
        "im2col_gemm",
    ),
    "of large filters in f32": (
        (
            *("fprop", 16, (84, 84), 256, 2048, "float32", (8, 8), (4, 4)),
            *(((0, 0),) * 2, 64),
        ),
        "im2col_gemm",
    ),
    "1x1 of many to one": (
        ("fprop", 8, (162, 162), 34, 1, "float32", (1, 1)),
        "im2col_gemm",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_as_measured(monkeypatch, name):
    on(monkeypatch, "9.0")
    arguments, engine = OTHERS[name]
    assert rules.engines(problem(*arguments))[0] == engine
