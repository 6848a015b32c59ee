# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of few input channels on Hopper GPUs: strips of the image."""

import numpy as np
import pytest
from problems import exact, normal, run
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
)
from test_few_channels import fields
from test_hopper_plan import H200
from test_implicit_gemm import SAME, problem
from test_layer_hopper import assert_exact as assert_layer_exact

TWO, THREE = ((2, 2), (2, 2)), ((3, 3), (3, 3))
# Of fprop: one tile and more in a row, sums of up to 8 eights, columns left over.
FORWARD = {
    "3->64": problem(5, (32, 33), 3, 64, (3, 3), padding=SAME),
    "3->128, wide": problem(1, (9, 150), 3, 128, (3, 3), padding=SAME),
    "3->20, strided": problem(3, (37, 29), 3, 20, (3, 3), (2, 1), ((1, 0), (2, 3))),
    "4->328": problem(2, (16, 24), 4, 328, (3, 3), padding=SAME),
    "2->32, dilated": problem(2, (23, 40), 2, 32, (5, 5), (1, 1), TWO, (2, 3)),
    "1->24": problem(2, (9, 70), 1, 24, (3, 3)),
    "7->16": problem(3, (8, 7), 7, 16, (3, 3), padding=SAME),
    "patches": problem(3, (24, 20), 3, 96, (4, 4), (4, 4)),
    "one pixel": problem(1, (3, 3), 3, 16, (3, 3)),
}
# Whole rows would fill shared memory: tiles of parts of them.
LONG_ROWS = {
    "3->16, long rows": problem(2, (7, 1500), 3, 16, (3, 3), padding=SAME),
    "4->68, long rows": problem(1, (9, 1100), 4, 68, (3, 3), (1, 2), TWO, (2, 2)),
    "2->64, long rows": problem(1, (5, 2500), 2, 64, (5, 5)),
    "16->20, long rows": problem(2, (3, 300), 16, 20, (2, 2)),
    # So are rows that taps are far apart in.
    "4->24, rows far apart": problem(
        2, (40, 1000), 4, 24, (3, 3), (2, 1), ((8, 8), (4, 4)), (8, 4)
    ),
}
FORWARD |= LONG_ROWS
# More channels, of few taps.
FORWARD |= {
    "12->20": problem(3, (1, 70), 12, 20, (1, 3)),
    "16->48": problem(2, (5, 90), 16, 48, (2, 2), padding=((1, 0), (0, 1))),
}
# Longer sums: strips in elements of a column, 10 to 46 eights.
WIDE = {
    "stem": problem(3, (30, 32), 3, 64, (7, 7), (2, 2), THREE),
    "stem, odd rows": problem(2, (31, 29), 3, 64, (7, 7), (2, 2), THREE),
    "stem, more than blocks": problem(140, (20, 18), 3, 64, (7, 7), (2, 2), THREE),
    "stem, wide": problem(1, (24, 150), 4, 200, (7, 7), (2, 2), ((2, 4), (3, 2))),
    "11x11s4": problem(2, (61, 63), 3, 64, (11, 11), (4, 4), TWO),
    "5x5, 3->32": problem(33, (16, 15), 3, 32, (5, 5), padding=TWO),
    "7x7, 3->64": problem(3, (20, 33), 3, 64, (7, 7), padding=THREE),
    "7->36, dilated": problem(
        2, (40, 23), 7, 36, (3, 5), (1, 2), ((4, 1), (0, 7)), (2, 3)
    ),
    "6->72": problem(3, (19, 14), 6, 72, (4, 3), padding=SAME),
    "3->16 of one pixel": problem(1, (1, 1), 3, 16, (7, 7), padding=THREE),
    "past the image": problem(2, (5, 4), 5, 20, (5, 5), padding=((6, 7), (5, 5))),
    "long": problem(3, (1, 5003), 4, 72, (1, 15), padding=((0, 0), (7, 7))),
    "long, dilated": problem(
        2, (1, 3001), 6, 40, (1, 9), padding=((0, 0), (70, 0)), dilation=(1, 9)
    ),
}
FORWARD |= WIDE
# And of dgrad.
BACKWARD = {
    "16->1, a sequence": problem(3, (1, 2500), 16, 1, (1, 7)),
    "64->3, 7x7": problem(2, (20, 33), 64, 3, (7, 7), padding=THREE),
    "72->6, dilated": problem(
        2, (19, 14), 72, 6, (4, 3), padding=((3, 1), (0, 4)), dilation=(2, 1)
    ),
    "16->3, long rows": problem(1, (4, 1500), 16, 3, (3, 3), padding=SAME),
    "20->12": problem(3, (1, 70), 20, 12, (1, 3)),
    "past the image, 20->5": problem(
        2, (5, 4), 20, 5, (5, 5), padding=((6, 7), (5, 5))
    ),
    "64->3": problem(5, (32, 33), 64, 3, (3, 3), padding=SAME),
    "320->4": problem(2, (16, 24), 320, 4, (3, 3), padding=((0, 2), (1, 0))),
    "32->2, dilated": problem(2, (23, 40), 32, 2, (5, 5), (1, 1), TWO, (1, 2)),
    "one pixel": problem(1, (1, 1), 16, 3, (3, 3), padding=SAME),
}
# And of wgrad: columns of one product, of two side by side and of three tiles,
# one tile a block and more, rows that end within eight pixels.
FILTERS = {
    "stem": problem(5, (40, 41), 3, 64, (7, 7), (2, 2), THREE),
    "stem, many tiles": problem(140, (20, 18), 3, 64, (7, 7), (2, 2), THREE),
    "11x11": problem(2, (67, 63), 3, 72, (11, 11), (4, 4), TWO),
    "5->24, dilated": problem(2, (23, 24), 5, 24, (5, 5), (1, 1), THREE, (2, 3)),
    "8->132": problem(3, (19, 70), 8, 132, (3, 3), padding=SAME),
    "6->16, five rows": problem(2, (5, 9), 6, 16, (5, 3), padding=((0, 3), (2, 1))),
    "a column": problem(3, (31, 7), 3, 32, (3, 7)),
    "negative": problem(2, (14, 14), 3, 16, (3, 3), padding=((-2, 1), (1, -2))),
    "one pixel": problem(2, (1, 1), 3, 16, (3, 3), padding=SAME),
    # Of few outputs: x and dy change places.
    "20->1": problem(3, (37, 70), 20, 1, (3, 3), padding=SAME),
    "72->3, dilated": problem(2, (23, 24), 72, 3, (5, 5), (1, 1), THREE, (2, 3)),
    "16->8, negative": problem(2, (14, 14), 16, 8, (3, 2), padding=((-2, 1), (1, -2))),
    **{name: FORWARD[name] for name in ("3->20, strided", "4->328", "7->16")},
}
CASES = [("fprop", name) for name in FORWARD] + [("dgrad", name) for name in BACKWARD]


def case_of(op, name):
    return {"fprop": FORWARD, "dgrad": BACKWARD, "wgrad": FILTERS}[op][name]


@pytest.mark.parametrize(("op", "name"), CASES)
def test_this_kernel_is_the_plan(native, op, name):
    case = case_of(op, name)
    for n in (1, 3, 1000):
        plan = native(op, fields(case._replace(x=(n, *case.x[1:]))), "float32", H200)
        assert plan["path"] == "strips" and plan["preferred"]
        assert plan["workspace"] == 0
        assert plan["epilogue"] == (op == "fprop")


def test_long_rows_have_tiles_of_their_parts(native):
    for name, case in FORWARD.items():
        config = native("fprop", fields(case), "float32", H200)["config"]
        of_parts = config.split("x")[1] != "64" or name == "2->64, long rows"
        assert of_parts == (name in LONG_ROWS), name


@pytest.mark.parametrize("name", FILTERS)
def test_this_kernel_is_the_plan_of_wgrad(native, name):
    case = FILTERS[name]
    for n in (1, 3, 1000):
        many = fields(case._replace(x=(n, *case.x[1:])))
        plan = native("wgrad", many, "float32", H200)
        assert plan["path"] == "strips" and plan["preferred"]
        # A column's elements, of which tiles hold 32, 80 or 160, by 64 channels.
        elements, k = np.prod(case.w[:-1]), case.w[-1]
        if k < case.w[-2]:
            elements, k = elements // case.w[-2] * k, case.w[-2]
        tile = next(t for t in (32, 80, 160) if elements <= t or t == 160)
        splits, rest = divmod(plan["blocks"], -(-elements // tile) * -(-k // 64))
        assert rest == 0
        assert plan["workspace"] % 256 == 0
        assert 0 <= plan["workspace"] - splits * elements * k * 4 < 256
        assert splits == 1 or plan["blocks"] <= H200
    # All of a stem at batch 256.
    assert plan["workspace"] <= 8 << 20


def test_what_has_no_kernel_of_strips(native):
    def path(*args):
        return native("fprop", fields(problem(2, *args)), "float32", H200)["path"]

    stem = (7, 7), (2, 2), THREE
    assert path((30, 32), 3, 64, *stem) == "strips"
    assert path((30, 32), 3, 90, *stem) == "padded tiles"  # no 16 bytes
    assert path((30, 32), 8, 64, (3, 3)) == "tiles"  # a quarter of a box
    assert path((30, 32), 3, 64, (13, 13), (2, 2), THREE) == "padded tiles"
    # Two rows of 2000 pixels with six more fill no shared memory.
    assert path((30, 4000), 3, 64, *stem) == "padded tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("name", FILTERS)
def test_whole_numbers_are_exact_in_dw(hopper, name):
    assert_exact(FILTERS[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "name"), CASES)
def test_whole_numbers_are_exact(hopper, op, name):
    assert_exact(case_of(op, name), "float32")
    if op == "fprop":
        # Of one pixel the taps that meet it alone, and a pass over y.
        fused = name != "3->16 of one pixel"
        assert_layer_exact(case_of(op, name), "float32", fused)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "name"),
    [
        *[("fprop", "3->64"), ("fprop", "3->20, strided"), ("dgrad", "64->3")],
        *[("wgrad", "stem"), ("wgrad", "11x11")],
        *[("fprop", "stem"), ("fprop", "11x11s4"), ("fprop", "5x5, 3->32")],
    ],
)
def test_promises(hopper, op, name):
    case = case_of(op, name)
    assert_batch_invariant(case, "float32")
    assert_a_hundred_runs_agree(case, "float32", algorithm="implicit_gemm")
    x, w, dy = arrays(case, normal, "float32")
    found = run(case, x, w, dy, algorithm="implicit_gemm")
    for a, b in zip(found, exact(case, x, w, dy), strict=True):
        assert np.linalg.norm(a - b) < 5e-4 * np.linalg.norm(b)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "name"),
    [
        *[("fprop", "3->64"), ("fprop", "stem"), ("dgrad", "64->3")],
        *[("wgrad", "stem"), ("wgrad", "stem, many tiles"), ("wgrad", "11x11")],
    ],
)
def test_what_is_not_finite_stays_where_it_belongs(hopper, op, name):
    case = case_of(op, name)
    x, w, dy = arrays(case, normal, "float32")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 1] = np.inf
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    columns = run(case, x, w, dy, algorithm="im2col_gemm")
    for a, b in zip(got, columns, strict=True):
        assert not np.isfinite(a).all()
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
