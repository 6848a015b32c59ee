# SPDX-License-Identifier: Apache-2.0
"""Convolutions of several groups in implicit_gemm on CUDA: depthwise and others."""

import functools

import jax
import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import Problem, exact, normal, run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_stays_in_its_group,
    assert_right_but_for_rounding,
)
from test_few_channels import fields
from test_hopper_plan import H200, OPS

import jax_convbatch as jc
from jax_convbatch._native import targets

NHWC = ("NHWC", "HWIO", "NHWC")
NONE, SAME = ((0, 0), (0, 0)), ((1, 1), (1, 1))


@pytest.fixture
def gpu():
    """The first CUDA device, which these tests need to be of 8.0 or later."""
    device = jax.devices("cuda")[0]
    if float(device.compute_capability) < 8:
        pytest.skip(f"compute capability {device.compute_capability}")
    with jax.default_device(device):
        yield


def problem(
    n,
    size,
    groups,
    taps,
    channels=(1, 1),
    stride=(1, 1),
    padding=SAME,
    dilation=(1, 1),
    input_dilation=(1, 1),
):
    """`channels` of one group: input, output."""
    c, k = channels
    conv = oracle.Conv(stride, padding, input_dilation, dilation, groups)
    return Problem((n, *size, groups * c), (*taps, c, groups * k), conv, NHWC)


DEPTHWISE = {
    "three channels": problem(2, (9, 11), 3, (3, 3)),
    "odd channels": problem(3, (13, 12), 17, (3, 3), stride=(2, 2)),
    "3x3": problem(3, (17, 19), 40, (3, 3)),
    "3x3, large": problem(2, (70, 61), 32, (3, 3)),
    # Tiles that the copy engine brings on Hopper: whole, and over all edges.
    "3x3, whole tiles": problem(5, (14, 28), 64, (3, 3)),
    "3x3, shifted": problem(3, (28, 28), 72, (3, 3), padding=((-2, 3), (0, -1))),
    "strided": problem(2, (15, 14), 64, (3, 3), stride=(2, 2)),
    # dgrad of both residue classes that may have one tap more.
    "strided, even taps first": problem(2, (18, 23), 64, (3, 3), (1, 1), (2, 2), NONE),
    "5x5": problem(2, (15, 14), 72, (5, 5), padding=((2, 2), (2, 2))),
    "5x5, strided": problem(2, (15, 14), 72, (5, 5), stride=(2, 2)),
    "5x5, strided, odd taps first": problem(
        3, (31, 27), 40, (5, 5), (1, 1), (2, 2), ((1, 2), (1, 2))
    ),
    # Planes on Hopper: images of several segments, and segments of several images.
    "5x5, high and wide": problem(2, (67, 150), 40, (5, 5), padding=((2, 2), (2, 2))),
    "5x5, shifted": problem(3, (9, 20), 64, (5, 5), padding=((6, -1), (-3, 9))),
    "7x7, high": problem(2, (75, 57), 32, (7, 7), padding=((3, 3), (3, 3))),
    "5x5, many": problem(90, (14, 14), 40, (5, 5), padding=((2, 2), (2, 2))),
    "7x7, many": problem(67, (28, 14), 40, (7, 7), padding=((3, 3), (3, 3))),
    "7x7, small": problem(37, (7, 5), 48, (7, 7), padding=((3, 3), (3, 3))),
    "7x7": problem(2, (14, 14), 96, (7, 7), padding=((3, 3), (3, 3))),
    "11x11": problem(2, (12, 13), 32, (11, 11), padding=((5, 5), (5, 5))),
    "dilated": problem(
        2, (20, 21), 48, (3, 3), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
    "negative": problem(2, (14, 16), 32, (3, 3), padding=((-2, 1), (0, -1))),
    "padding past the image": problem(2, (3, 4), 32, (3, 3), padding=((5, 7), (6, 4))),
    "strided beyond the filter": problem(
        2, (17, 18), 32, (2, 2), stride=(4, 5), padding=NONE
    ),
    "a row": problem(3, (1, 100), 64, (1, 4), padding=((0, 0), (3, 0))),
    "one pixel": problem(5, (1, 1), 64, (3, 3)),
    "many samples": problem(300, (7, 7), 64, (3, 3)),
}
GROUPED = {
    "4 to 4": problem(3, (14, 14), 32, (3, 3), (4, 4)),
    "4 to 4, strided": problem(2, (15, 14), 16, (3, 3), (4, 4), stride=(2, 2)),
    "8 to 8": problem(2, (13, 9), 8, (3, 3), (8, 8)),
    "8 to 8, dilated": problem(
        2, (15, 14), 8, (5, 5), (8, 8), padding=((4, 4), (4, 4)), dilation=(2, 2)
    ),
    "16 to 16": problem(2, (13, 9), 4, (3, 3), (16, 16)),
    "24 to 24": problem(2, (13, 9), 3, (3, 3), (24, 24)),
    "32 to 32": problem(2, (7, 7), 4, (3, 3), (32, 32)),
    "two outputs a channel": problem(2, (15, 14), 32, (3, 3), (1, 2)),
    "eight outputs a channel": problem(2, (12, 12), 16, (3, 3), (1, 8)),
    "2 to 4": problem(2, (9, 9), 8, (3, 3), (2, 4)),
    "16 to 8": problem(2, (9, 9), 4, (3, 3), (16, 8)),
    "4 to 24": problem(2, (9, 9), 8, (3, 3), (4, 24)),
    "8 to 8, 7x7": problem(2, (12, 12), 4, (7, 7), (8, 8), padding=((3, 3), (3, 3))),
    "8 to 8, negative": problem(
        2, (12, 12), 4, (3, 3), (8, 8), (1, 2), ((-2, 3), (-1, 0))
    ),
}
EDGES = DEPTHWISE | GROUPED
CASES = [
    pytest.param(name, dtype, id=f"{name}, {dtype}")
    for name in EDGES
    for dtype in ("float32", "bfloat16", "float16")
    if name in DEPTHWISE or dtype != "float32"
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_whole_numbers_are_exact(gpu, name, dtype):
    assert_exact(EDGES[name], dtype)


# Where a block may have more shared memory than on other GPUs.
FAR = {
    "7x7, dilated": problem(
        2, (29, 30), 40, (7, 7), padding=((9, 9), (9, 9)), dilation=(3, 3)
    ),
    # Of so many taps tiles have half as many channels.
    "21x21": problem(2, (22, 19), 40, (21, 21), padding=((10, 10), (10, 10))),
    "21x23, odd channels": problem(
        2, (13, 12), 17, (21, 23), padding=((10, 10), (11, 11))
    ),
    "a long row": problem(2, (1, 500), 24, (1, 450), padding=((0, 0), (449, 0))),
    "31x31": problem(2, (33, 28), 40, (31, 31), padding=((15, 15), (15, 15))),
    "29x31, strided": problem(
        2, (35, 37), 24, (29, 31), stride=(2, 2), padding=((14, 14), (15, 15))
    ),
}
FAR_CASES = [
    pytest.param(name, dtype, id=f"{name}, {dtype}")
    for name in FAR
    for dtype in ("float32", "bfloat16", "float16")
    # wgrad's tiles of such filters do not fit in f32.
    if dtype != "float32" or name not in ("31x31", "29x31, strided")
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), FAR_CASES)
def test_far_taps_are_exact(hopper, name, dtype):
    assert_exact(FAR[name], dtype)


@st.composite
def supported(draw, channels):
    def two(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * 2))

    groups, c, k = draw(channels)
    padding = draw(st.tuples(*[st.tuples(*[st.integers(-2, 5)] * 2)] * 2))
    case = problem(
        draw(st.integers(1, 5)),
        two(1, 24),
        groups,
        two(1, 5),
        (c, k),
        two(1, 3),
        padding,
        two(1, 2),
    )
    assume(case.w[:2] != (1, 1))  # could be a matrix product as it stands
    # Tiles of larger ones do not fit into shared memory in float32.
    assume(max(case.conv.strides) < 3 or max(case.w[:2]) < 5)
    assume(all(n >= 0 for n in case.conv.padded_sizes(case.x[1:-1])))
    assume(np.prod(case.y) > 0)
    return case


depthwise = st.tuples(st.integers(2, 100), st.just(1), st.just(1))
grouped = st.sampled_from(
    [(g, c, k) for g in (8, 24) for c in (1, 2, 4, 8, 16) for k in (1, 2, 4, 8, 24)]
).filter(lambda sizes: sizes[1:] not in ((1, 1), (1, 24)))


@pytest.mark.gpu
@given(case=supported(depthwise), dtype=st.sampled_from(["float32", "bfloat16"]))
@settings(max_examples=60)
def test_any_depthwise_problem_is_exact(gpu, case, dtype):
    assert_exact(case, dtype)


@pytest.mark.gpu
@given(case=supported(grouped), dtype=st.sampled_from(["bfloat16", "float16"]))
@settings(max_examples=60)
def test_any_problem_of_small_groups_is_exact(gpu, case, dtype):
    assert_exact(case, dtype)


def fprop_and_dgrad(case, x, w, dy, algorithm):
    """Without wgrad, which dilated inputs go to another engine for."""

    @jax.jit
    def both(x, w, dy):
        y, pullback = jax.vjp(
            lambda x: jc.conv_general_dilated(x, w, algorithm=algorithm, **case.kwargs),
            x,
        )
        return y, pullback(dy)[0]

    return both(x, w, dy)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [(1, 1), (4, 4)])
def test_dilated_inputs_are_exact(gpu, channels):
    case = problem(
        2, (8, 9), 16, (4, 3), channels, (3, 2), ((2, 2), (1, 1)), (1, 2), (2, 4)
    )
    args = arrays(case, functools.partial(whole, most=1), "bfloat16")
    want = exact(case, *args)
    y, dx = fprop_and_dgrad(case, *args, "implicit_gemm")
    np.testing.assert_array_equal(y, want.y.astype(y.dtype))
    np.testing.assert_array_equal(dx, want.dx.astype(dx.dtype))


REAL = [
    "3x3",
    "3x3, whole tiles",
    "strided",
    "5x5, strided",
    "5x5",
    "5x5, high and wide",
    "7x7",
    "7x7, high",
    "7x7, small",
    "dilated",
    "4 to 4",
    "24 to 24",
]


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL)
def test_real_numbers_are_right_but_for_rounding(gpu, name):
    assert_right_but_for_rounding(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL)
def test_a_samples_bits_do_not_depend_on_its_batch(gpu, name):
    assert_batch_invariant(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["many samples", "3x3, whole tiles", "strided", "7x7, small", "4 to 4", "24 to 24"],
)
def test_a_hundred_runs_give_the_same_bits(gpu, name):
    assert_a_hundred_runs_agree(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["3x3", "3x3, whole tiles", "7x7", "4 to 4", "two outputs a channel"]
)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_group(gpu, name, value):
    """Small groups share matrices, in which infinity meets other groups' zeros."""
    assert_not_finite_stays_in_its_group(EDGES[name], value)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5x5", "7x7", "7x7, high", "5x5, many", "7x7, many"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_reaches_only_what_meets_it(gpu, name, value):
    """Though on Hopper outputs share products, with zeros for what is not theirs."""
    case = EDGES[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), "bfloat16")
    w = abs(w) + 1
    clean = run(case, x, w, dy, algorithm="implicit_gemm")
    x[1, 0, 5, 7] = dy[1, -1, 2, 7] = value
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    # What meets a pixel is where its image under the filter is not zero.
    spot_x, spot_dy = np.zeros_like(x), np.zeros_like(dy)
    spot_x[1, 0, 5, 7] = spot_dy[1, -1, 2, 7] = 1
    one = np.ones_like
    of_x = exact(case, spot_x, one(w), one(dy))
    of_dy = exact(case, one(x), one(w), spot_dy)
    meet = (of_x.y, of_dy.dx, of_x.dw + of_dy.dw)
    for a, b, hit in zip(got, clean, meet, strict=True):
        a, b, hit = np.asarray(a), np.asarray(b), hit != 0
        assert hit.any() and not hit.all()
        np.testing.assert_array_equal(a[~hit], b[~hit])
        assert not np.isfinite(oracle.float64(a[hit])).any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_the_default_for_depthwise_convolutions(gpu, dtype):
    x, w, _ = arrays(EDGES["3x3"], normal, dtype)
    step = jax.value_and_grad(
        lambda x, w: jc.conv(x, w, groups=40, precision="highest").sum(), (0, 1)
    )
    assert {row.engine for row in jc.explain(step, x, w)} == {"implicit_gemm"}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("x", "w", "groups", "dtype"),
    [
        ((2, 8, 8, 9), (3, 3, 3, 9), 3, "bfloat16"),
        ((1, 4, 4, 1564), (3, 3, 46, 1564), 34, "float32"),
        ((2, 8, 8, 32), (1, 1, 1, 32), 32, "bfloat16"),
        ((2, 4, 8, 8, 32), (3, 3, 3, 1, 32), 32, "bfloat16"),
    ],
)
def test_other_groups_are_refused_by_name(gpu, x, w, groups, dtype):
    x, w = normal(0, x, dtype), normal(1, w, dtype)
    call = functools.partial(jc.conv, algorithm="implicit_gemm", groups=groups)
    with pytest.raises(ValueError, match=f"does not cover {groups} groups"):
        jax.jit(call)(x, w)
    assert {
        row.engine
        for row in jc.explain(lambda x, w: jc.conv(x, w, groups=groups), x, w)
    } == {"im2col_gemm" if targets.cudnn_problem() else "cudnn"}


# --- one group: long sequences of few channels --------------------------------------

THIN = {
    "16 channels": problem(3, (1, 8195), 1, (1, 3), (16, 16), padding=((0, 0), (1, 1))),
    "24, dilated": problem(
        2, (1, 8250), 1, (1, 7), (24, 24), (1, 1), ((0, 0), (27, 27)), (1, 9)
    ),
    "24->16, strided": problem(
        2, (1, 16400), 1, (1, 4), (24, 16), (1, 2), ((0, 0), (1, 2))
    ),
    "16->24, causal": problem(
        2, (1, 8200), 1, (1, 2), (16, 24), (1, 1), ((0, 0), (1, 0))
    ),
}


@pytest.mark.parametrize("op", OPS)
def test_which_sequences_of_one_group_are_covered(native, op):
    def path(case, dtype="bfloat16"):
        return native(op, fields(case), dtype, H200)["path"]

    for case in THIN.values():
        # wgrad, whose bits may depend on the batch, of many steps in all.
        few = path(case)
        assert (few == "direct tiles") == (op != "wgrad")
        assert path(case._replace(x=(1000, *case.x[1:]))) == "direct tiles"
        assert path(case, "float32") != "direct tiles"
    for length, channels in ((4000, 24), (16000, 32), (16000, 8)):
        case = problem(3, (1, length), 1, (1, 3), (channels, channels))
        assert path(case) != "direct tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", THIN)
def test_thin_sequences_are_exact(gpu, name, dtype):
    assert_exact(THIN[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", THIN)
def test_a_thin_sequences_bits_do_not_depend_on_its_batch(gpu, name):
    assert_batch_invariant(THIN[name], "bfloat16")
    assert_a_hundred_runs_agree(THIN[name], "bfloat16", algorithm="implicit_gemm")


@pytest.mark.gpu
def test_thin_sequences_are_right_but_for_rounding(gpu):
    assert_right_but_for_rounding(THIN["24, dilated"], "bfloat16")
