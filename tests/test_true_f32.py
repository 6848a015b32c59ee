# SPDX-License-Identifier: Apache-2.0
"""f32 at HIGHEST on CUDA: true f32 products without columns, from sm_80 on."""

import dataclasses
import functools

import jax
import numpy as np
import oracle
import pytest
from problems import Problem, exact, normal, run
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
    bits,
)
from test_hopper_plan import H200, OPS, geometry

import jax_convbatch as jc
from benchmarks.workloads import RESNET50_V1
from jax_convbatch._primitives import primitives
from jax_convbatch._select import plan
from jax_convbatch._tune.tune import problems_of

SAME = ((1, 1), (1, 1))


def problem(
    n,
    size,
    c,
    k,
    taps=(3, 3),
    stride=(1, 1),
    padding=SAME,
    dilation=(1, 1),
    dilated=(1, 1),
):
    conv = oracle.Conv(stride, padding, dilated, dilation, 1)
    return Problem((n, *size, c), (*taps, c, k), conv, ("NHWC", "HWIO", "NHWC"))


CASES = {
    "3x3": problem(3, (14, 13), 64, 72),
    "1x1": problem(5, (9, 8), 20, 260, (1, 1), padding=((0, 0), (0, 0))),
    "strided": problem(3, (15, 16), 36, 132, stride=(2, 2)),
    "strided unevenly": problem(2, (11, 17), 16, 28, (5, 2), (3, 2)),
    "stride larger than the filter": problem(
        4, (9, 13), 24, 40, (1, 2), (2, 3), ((0, 0), (1, 0))
    ),
    "dilated": problem(2, (13, 12), 16, 20, padding=((5, 2), (-1, 7)), dilation=(3, 2)),
    "padding larger than the image": problem(
        2, (3, 2), 8, 12, padding=((6, 7), (5, 9))
    ),
    "few channels": problem(3, (12, 12), 4, 8),
    "few outputs": problem(9, (3, 1), 40, 36),
    "transposed": problem(2, (7, 6), 32, 20, padding=((2, 1), (1, 2)), dilated=(2, 3)),
    "wide rows": problem(4, (9, 61), 36, 68),
    # Whose sums are formed in chunks.
    "long sums": problem(5, (7, 7), 128, 136),
    "long sums, strided": problem(9, (8, 7), 256, 64, stride=(2, 2)),
    "one pixel": problem(130, (1, 1), 520, 260, (1, 1), padding=((0, 0), (0, 0))),
}
LONG = [name for name in CASES if name.startswith(("long", "one"))]


def call(case, **options):
    return functools.partial(
        jc.conv_general_dilated, **case.kwargs, precision="highest", **options
    )


def all_three(case, **options):
    def step(x, w, dy):
        y, pullback = jax.vjp(call(case, **options), x, w)
        return y, pullback(dy)

    return step


def case_of(problem, x, w, dy):
    """The operands of one operation."""
    return {"fprop": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.op]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    assert_exact(CASES[name], "float32", precision="highest")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "float32", precision="highest")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3", "strided", *LONG])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(CASES[name], "float32", precision="highest")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3", "long sums, strided"])
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(
        CASES[name], "float32", precision="highest", algorithm="implicit_gemm"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3", "strided", *LONG])
def test_every_configuration_gives_the_same_bits(hopper, name):
    case = CASES[name]
    args = arrays(case, normal, "float32")
    for each in problems_of(all_three(case), *args):
        g = each.params.geometry
        names = plan.configs("implicit_gemm", each.op, g, "float32", "cuda", 2)
        assert len(names) > 1 or each.op == "wgrad" or name == "3x3"
        want = None
        for config in names:
            params = dataclasses.replace(
                each.params, algorithm="implicit_gemm", config=config
            )
            fun = functools.partial(
                primitives.bind, each.op, params=params, out_dtype=np.dtype("float32")
            )
            got = bits(jax.jit(fun)(*case_of(each, *args)))
            want = got if want is None else want
            np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
def test_sums_in_chunks_need_no_workspace(hopper):
    """Where there is none, a block forms all chunks of a tile, with the same bits."""
    case = CASES["long sums, strided"]
    x, w, _ = arrays(case, normal, "float32")
    parts = 6 * w.size  # bytes of the filter's, which are always there
    wanted = call(case, algorithm="implicit_gemm")
    limited = functools.partial(wanted, workspace_limit=parts)
    rows = [jc.explain(fun, x, w)[0] for fun in (wanted, limited)]
    assert rows[0].workspace_bytes > parts
    assert rows[1].workspace_bytes == parts
    np.testing.assert_array_equal(
        bits(jax.jit(wanted)(x, w)), bits(jax.jit(limited)(x, w))
    )


@pytest.mark.gpu
def test_it_is_the_default_at_highest(hopper):
    case = CASES["3x3"]
    args = arrays(case, normal, "float32")
    rows = jc.explain(all_three(case), *args)
    assert {row.engine for row in rows} == {"implicit_gemm"}
    assert all("true f32" in row.reason for row in rows)


@pytest.mark.gpu
def test_channels_that_are_not_a_multiple_of_4_are_refused_by_name(hopper):
    x, w, _ = arrays(problem(2, (5, 5), 6, 8), normal, "float32")
    fun = functools.partial(jc.conv, precision="highest", algorithm="implicit_gemm")
    with pytest.raises(ValueError, match="true float32"):
        jax.jit(fun)(x, w)


# Six products, and in chunks; direct sums.
ODD = {
    "six products": problem(3, (9, 8), 40, 64),
    "six products, chunks": problem(3, (7, 7), 128, 136),
    "direct": problem(3, (9, 8), 12, 28),
}
# Where what is no number stands: corners of images, and within.
PLACES = {
    "x": {(0, 0, 0, 1): np.inf, (0, 3, 4, 5): -np.inf, (1, -1, -1, 2): np.nan},
    "w": {(0, 2, 7, 3): np.inf, (1, 1, 3, 20): -np.inf, (2, 0, 9, 5): np.nan},
    "dy": {(1, 0, 3, 4): np.inf, (2, 5, 2, 0): -np.inf, (2, -1, -1, 9): np.nan},
}


def definition(case, x, w, dy):
    """y, dx and dw as sums over padded operands, padding being zeros like others."""
    x, w, dy = (oracle.float64(a) for a in (x, w, dy))
    turned = w[::-1, ::-1].swapaxes(2, 3)
    return (
        oracle.fprop(x, w, case.conv),
        oracle.fprop(dy, turned, case.conv),  # 3x3, padded by 1
        oracle.wgrad(x, dy, case.conv, (3, 3)),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("roles", ["x", "w", "dy", "x w dy"])
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_number_goes_where_the_sum_takes_it(hopper, name, roles):
    case = ODD[name]
    args = dict(zip(("x", "w", "dy"), arrays(case, normal, "float32"), strict=True))
    for role in roles.split():
        for place, value in PLACES[role].items():
            args[role][place] = value
    with np.errstate(invalid="ignore"):
        want = definition(case, *args.values())
    got = run(case, *args.values(), precision="highest", algorithm="implicit_gemm")
    assert any(not np.isfinite(a).all() for a in want)
    for a, b in zip(got, want, strict=True):
        for asks in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(asks(a), asks(b))
        finite = np.isfinite(b)
        np.testing.assert_allclose(a[finite], b[finite], rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ODD)
def test_numbers_near_the_largest_do_not_overflow_on_the_way(hopper, name):
    case = ODD[name]
    x, w, dy = arrays(case, normal, "float32")
    x = np.copysign(np.float32(3e38), x)
    w, dy = w * np.float32(1e-4), dy * np.float32(1e-5)
    got = run(case, x, w, dy, precision="highest", algorithm="implicit_gemm")
    for a, b in zip(got, definition(case, x, w, dy), strict=True):
        scale = abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, atol=1e-5)


# Three parts of bf16 and six products of them, by the filter and the stride.
PARTS = {
    **{f"3x3, {c} channels": problem(2, (8, 8), c, 64) for c in (32, 128, 512)},
    "1x1": problem(2, (8, 8), 512, 64, (1, 1), padding=((0, 0), (0, 0))),
    "strided": problem(2, (16, 16), 128, 64, stride=(2, 2)),
}


def error(values, right):
    return np.linalg.norm(oracle.float64(values) - right) / np.linalg.norm(right)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PARTS)
def test_six_products_are_more_precise_than_the_sum(hopper, name):
    """The error against float64 is below that of adding term by term."""
    case = PARTS[name]
    x, w, dy = arrays(case, normal, "float32")
    rows = jc.explain(all_three(case), x, w, dy)
    assert all("six products" in row.reason for row in rows)
    got = run(case, x, w, dy, precision="highest", algorithm="implicit_gemm")
    right = exact(case, x, w, dy)
    if name.startswith("3x3"):
        assert error(got.y, right.y) < error(term_by_term(x, w), right.y)
    for values, want in zip(got, right, strict=True):
        assert error(values, want) < 2.5e-7


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_small_and_large_numbers_keep_their_precision(hopper, scale):
    case = PARTS["3x3, 128 channels"]
    x, w, dy = arrays(case, normal, "float32")
    x, dy = x * np.float32(scale), dy * np.float32(scale)
    got = run(case, x, w, np.sign(dy), precision="highest", algorithm="implicit_gemm")
    right = exact(case, x, w, np.sign(dy))
    for values, want in zip(got, right, strict=True):
        assert error(values, want) < 2.5e-7


@pytest.mark.gpu
def test_a_filter_that_moves_an_image_keeps_every_bit(hopper):
    """Three parts hold all of a number, which a product by one leaves as it is."""
    x = arrays(PARTS["3x3, 128 channels"], normal, "float32")[0]
    w = np.zeros((3, 3, 128, 128), np.float32)
    w[2, 0] = np.eye(128)
    conv = functools.partial(jc.conv, padding=1, precision="highest")
    moved = np.pad(x, ((0, 0), (0, 1), (1, 0), (0, 0)))[:, 1:, :-1]
    np.testing.assert_array_equal(jax.jit(conv)(x, w), moved)
    dx = jax.jit(lambda dy: jax.vjp(lambda x: conv(x, w), x)[1](dy)[0])(x)
    back = np.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0)))[:, :-1, 1:]
    np.testing.assert_array_equal(dx, back)


def term_by_term(x, w):
    """y of a padded 3x3 filter, a term at a time in float32."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    y = np.zeros((*x.shape[:3], w.shape[-1]), np.float32)
    for r, s, c in np.ndindex(*w.shape[:3]):
        y += padded[:, r : r + height, s : s + width, c, None] * w[r, s, c]
    return y


# --- planned without a GPU ------------------------------------------------------


def plans(native, op, batch, row, **sizes):
    return native(op, geometry(batch, row, **sizes), "float32", H200, True, True)


@pytest.mark.parametrize("row", RESNET50_V1.values(), ids=RESNET50_V1)
def test_resnet_takes_little_workspace(native, row):
    for op in OPS:
        large = plans(native, op, 256, row)
        assert large["path"].startswith("true f32")
        # Partial sums, and the parts of the filter.
        assert large["workspace"] <= 64 << 20


@pytest.mark.parametrize("row", RESNET50_V1.values(), ids=RESNET50_V1)
def test_the_way_of_summing_does_not_depend_on_the_batch(native, row):
    for op in ("fprop", "dgrad"):
        found = [plans(native, op, batch, row) for batch in (1, 8, 33, 256)]
        assert len({each["path"] for each in found}) == 1
        splits = {each["config"].partition("/")[2] for each in found} - {""}
        assert len(splits) <= 1


def test_another_gpu_has_the_same_kernels(native):
    row = RESNET50_V1["56_3x3_64_64"]
    for op in OPS:
        g = geometry(8, row)
        found = native(op, g, "float32", 108, False, True)
        # Six products are Hopper's.
        assert found["path"] == "true f32 tiles"


def test_small_images_in_large_batches_are_taken_too(native):
    for size, batch in ((1, 2**20), (7, 2**18)):
        row = (size, size, 2048, 2048, 1, 1, 1, 0, 1, 1)
        for op in ("fprop", "dgrad"):
            (few, many) = (plans(native, op, n, row) for n in (8, batch))
            assert few["path"] == many["path"]


def test_what_the_kernels_do_not_take_is_refused(native):
    row = RESNET50_V1["56_3x3_64_64"]
    for op in OPS:
        assert plans(native, op, 8, row, C=66) is None
        assert plans(native, op, 8, row, K=30) is None
        assert plans(native, op, 2**20, row) is None
