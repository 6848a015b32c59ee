"""wgrad of 1x1 layers whose 64 x 128 tiles are one wave: one product by cuBLAS."""

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


def config(native, batch, row, dtype="bfloat16", multiprocessors=H200):
    return native("wgrad", geometry(batch, row), dtype, multiprocessors)["config"]


@pytest.mark.parametrize("row", [WIDE, TALL])
def test_one_wave_is_a_product(native, row):
    for batch in (1, 8, 256):
        for dtype in ("bfloat16", "float16"):
            plan = native("wgrad", geometry(batch, row), dtype, H200)
            assert plan["config"] == "cublas"
            assert plan["workspace"] == 0
            for op in ("fprop", "dgrad"):
                other = native(op, geometry(batch, row), dtype, H200)
                assert other["config"] != "cublas"


def test_others_have_tiles(native):
    assert config(native, 8, WIDE, "float32") != "cublas"
    assert config(native, 8, WIDE, multiprocessors=120) != "cublas"
    assert config(native, 8, WIDE, multiprocessors=144) != "cublas"
    for changes in ({4: 3, 5: 3, 7: 1}, {6: 2}, {2: 1024}, {3: 1024}, {2: 456}):
        row = tuple(changes.get(i, n) for i, n in enumerate(WIDE))
        assert config(native, 8, row) != "cublas"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("batch", [1, 3, 8, 33])
@pytest.mark.parametrize("channels", [(512, 2048), (2048, 512), (1024, 1024)])
def test_products_are_exact(hopper, channels, batch, dtype):
    case = problem(batch, (7, 7), *channels, (1, 1))
    args = arrays(case, functools.partial(whole, most=1), dtype)
    got = run(case, *args, algorithm="implicit_gemm").dw
    want = run(case, *args, algorithm="im2col_gemm").dw
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
def test_products_are_reproducible(hopper):
    case = problem(8, (7, 7), 512, 2048, (1, 1))
    assert_right_but_for_rounding(case, "bfloat16")
    assert_a_hundred_runs_agree(case, "bfloat16")
