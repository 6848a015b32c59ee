# SPDX-License-Identifier: Apache-2.0
"""Which engine "auto" takes for 1x1 convolutions on Hopper, see `rule_products.py`."""

import jax
import jax.numpy as jnp
import oracle
import pytest
from fake_gpus import on
from problems import CHANNELS_LAST, Problem
from promises import params_of

from jax_convbatch._plans import planners
from jax_convbatch._select import rules


def product(op, size, c, k, dtype):
    none = (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1
    case = Problem(
        (64, size, size, c), (1, 1, c, k), oracle.Conv(*none), CHANNELS_LAST[2]
    )
    arrays = (jax.ShapeDtypeStruct(shape, dtype) for shape in (case.x, case.w))
    geometry = params_of(case, *arrays).geometry
    dtype = jnp.dtype(dtype)
    return planners.Problem(op, geometry, dtype, dtype, "cuda")


@pytest.mark.parametrize(
    ("op", "size", "c", "k", "engine"),
    [
        ("fprop", 38, 240, 24, "cudnn"),
        ("fprop", 56, 96, 24, "implicit_gemm"),  # a kernel for few channels
        ("fprop", 56, 144, 40, "cudnn"),
        ("fprop", 38, 240, 40, "im2col_gemm"),
        ("fprop", 28, 192, 136, "cudnn"),
        ("fprop", 28, 192, 144, "implicit_gemm"),
        ("fprop", 28, 192, 200, "implicit_gemm"),
        ("fprop", 1, 2048, 136, "implicit_gemm"),
        ("dgrad", 75, 96, 40, "cudnn"),
        ("dgrad", 14, 480, 40, "cudnn"),
        ("dgrad", 14, 480, 136, "implicit_gemm"),
        ("dgrad", 38, 240, 24, "cudnn"),
        ("dgrad", 28, 192, 24, "implicit_gemm"),
        ("wgrad", 28, 136, 192, "cudnn"),
        ("wgrad", 7, 1152, 24, "cudnn"),
        ("wgrad", 7, 1152, 32, "implicit_gemm"),
        ("wgrad", 28, 144, 192, "implicit_gemm"),
    ],
)
def test_pixels_that_begin_between_sectors(monkeypatch, op, size, c, k, engine):
    on(monkeypatch, "9.0")
    assert rules.engines(product(op, size, c, k, "bfloat16"))[0] == engine


@pytest.mark.parametrize(
    ("size", "c", "k", "engine"),
    [
        (28, 192, 112, "cudnn"),
        (28, 192, 128, "implicit_gemm"),
        (19, 672, 112, "implicit_gemm"),
        (14, 480, 40, "cudnn"),
        (28, 192, 40, "implicit_gemm"),
    ],
)
def test_wgrad_of_uneven_products_in_f32(monkeypatch, size, c, k, engine):
    on(monkeypatch, "9.0")
    assert rules.engines(product("wgrad", size, c, k, "float32"))[0] == engine
