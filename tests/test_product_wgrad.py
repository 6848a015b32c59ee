# SPDX-License-Identifier: Apache-2.0
"""wgrad of 1x1 layers that is one product by cuBLAS, with split sums or without."""

import functools

import numpy as np
import pytest
from problems import run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_right_but_for_rounding,
)
from test_hopper_plan import H200, geometry
from test_implicit_gemm import problem

WIDE, TALL = (7, 7, 512, 2048, 1, 1, 1, 0, 1, 1), (7, 7, 2048, 512, 1, 1, 1, 0, 1, 1)


# Few tiles of 64 x 128: of long sums cuBLAS splits them, of short ones clusters are
# ahead.
NARROW = (28, 28, 128, 512, 1, 1, 1, 0, 1, 1)
DEEP = (14, 14, 256, 1024, 1, 1, 1, 0, 1, 1)


def config(native, batch, row, dtype="bfloat16", multiprocessors=H200):
    return native("wgrad", geometry(batch, row), dtype, multiprocessors)["config"]


@pytest.mark.parametrize("row", [WIDE, TALL])
def test_one_wave_is_a_product(native, row):
    for batch in (16, 256):
        for dtype in ("bfloat16", "float16"):
            plan = native("wgrad", geometry(batch, row), dtype, H200)
            assert plan["config"] == "cublas"
            assert plan["workspace"] == 0
            for op in ("fprop", "dgrad"):
                other = native(op, geometry(batch, row), dtype, H200)
                assert other["config"] != "cublas"


def test_long_sums_are_a_product_with_workspace(native):
    for dtype in ("bfloat16", "float16"):
        for batch, row in ((256, NARROW), (32, NARROW), (256, DEEP), (32, DEEP)):
            plan = native("wgrad", geometry(batch, row), dtype, H200)
            assert plan["config"] == "cublas"
            assert 0 < plan["workspace"] <= 64 << 20
        short = native("wgrad", geometry(8, DEEP), dtype, H200)
        assert (short["config"], short["workspace"]) == ("64x64/128c2", 0)


FEW = (56, 56, 64, 256, 1, 1, 1, 0, 1, 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "batch, row, products",
    [
        (256, FEW, 64),
        (256, NARROW, 16),
        (256, DEEP, 8),
        (128, DEEP, 4),
        (225, (29, 31, *NARROW[2:]), 15),
    ],
)
def test_long_sums_are_cut_into_one_wave_of_products(
    native, batch, row, products, dtype
):
    plan = native("wgrad", geometry(batch, row), dtype, H200)
    assert plan["config"] == "cublas"
    assert plan["workspace"] == products * row[2] * row[3] * 4


def test_sums_of_pixels_that_cannot_be_cut_so_are_split_by_cublas(native):
    # 251 x 23 x 23, which 16 or 15 products of eight tiles cannot share.
    plan = native("wgrad", geometry(251, (23, 23, *NARROW[2:])), "bfloat16", H200)
    assert (plan["config"], plan["workspace"]) == ("cublas", 16 << 20)


@pytest.mark.parametrize("c, k", [(112, 672), (672, 112), (112, 1000)])
def test_long_sums_of_tiles_that_are_not_full_are_a_product(native, c, k):
    rest = (c, k, *NARROW[4:])
    for dtype in ("bfloat16", "float16"):
        plan = native("wgrad", geometry(128, (14, 14, *rest)), dtype, H200)
        assert (plan["config"], plan["workspace"]) == ("cublas", 16 << 20)
    for batch, size in ((8, 14), (128, 7)):
        assert config(native, batch, (size, size, *rest)) != "cublas"


def test_few_pixels_have_tiles(native):
    for row in (WIDE, TALL):
        for batch in (1, 8):
            assert config(native, batch, row) == "128x64/128"


def test_others_have_tiles(native):
    assert config(native, 8, WIDE, "float32") != "cublas"
    for changes in ({4: 3, 5: 3, 7: 1}, {6: 2}, {2: 456}):
        row = tuple(changes.get(i, n) for i, n in enumerate(WIDE))
        assert config(native, 8, row) != "cublas"
        assert config(native, 256, row) != "cublas"
    assert config(native, 8, NARROW) != "cublas"
    for square in (64, 128):
        row = (56, 56, square, square, *NARROW[4:])
        assert config(native, 256, row) != "cublas"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("batch", [1, 8, 12, 33])
@pytest.mark.parametrize("channels", [(512, 2048), (2048, 512), (1024, 1024)])
def test_products_are_exact(hopper, channels, batch, dtype):
    case = problem(batch, (7, 7), *channels, (1, 1))
    args = arrays(case, functools.partial(whole, most=1), dtype)
    got = run(case, *args, algorithm="implicit_gemm").dw
    want = run(case, *args, algorithm="im2col_gemm").dw
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "channels", [(64, 64), (128, 256), (256, 64), (112, 672), (264, 72)]
)
def test_long_products_are_exact(hopper, channels, dtype):
    case = problem(256, (28, 28), *channels, (1, 1))
    args = arrays(case, functools.partial(whole, most=1), dtype)
    got = run(case, *args, algorithm="implicit_gemm").dw
    want = run(case, *args, algorithm="im2col_gemm").dw
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("batch, size", [(225, (29, 31)), (251, (23, 23))])
def test_products_of_odd_numbers_of_pixels_are_exact(hopper, batch, size):
    case = problem(batch, size, 128, 512, (1, 1))
    args = arrays(case, functools.partial(whole, most=1), "bfloat16")
    got = run(case, *args, algorithm="implicit_gemm").dw
    want = run(case, *args, algorithm="im2col_gemm").dw
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [problem(16, (7, 7), 512, 2048, (1, 1)), problem(65, (14, 14), 112, 672, (1, 1))],
    ids=["one wave", "tiles that are not full"],
)
def test_products_are_reproducible(hopper, case):
    assert_right_but_for_rounding(case, "bfloat16")
    assert_a_hundred_runs_agree(case, "bfloat16")


@pytest.mark.gpu
def test_long_products_are_reproducible(hopper):
    assert_a_hundred_runs_agree(problem(32, (14, 14), 512, 512, (1, 1)), "bfloat16")
