# SPDX-License-Identifier: Apache-2.0
"""The Hopper engine where the copy engine cannot help: odd channels, stems, patches."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
    assert_right_but_for_rounding,
    engine_of,
)
from test_hopper_plan import H200
from test_implicit_gemm import SAME, problem

import jax_convbatch as jc

THREE = ((3, 3), (3, 3))
EDGES = {
    "one of all": problem(3, (1, 1), 1, 1, (1, 1)),
    "stem": problem(3, (30, 32), 3, 64, (7, 7), (2, 2), THREE),
    "stem, odd rows": problem(2, (31, 29), 3, 64, (7, 7), (2, 2), THREE),
    "stem, four channels": problem(2, (24, 24), 4, 64, (7, 7), (2, 2), THREE),
    "stem, tiles of 112": problem(33, (40, 40), 3, 64, (7, 7), (2, 2), THREE),
    "stem, more than blocks": problem(140, (20, 18), 3, 64, (7, 7), (2, 2), THREE),
    "one channel, more than blocks": problem(
        134, (14, 14), 1, 16, (3, 3), padding=SAME
    ),
    "to three, more than blocks": problem(140, (10, 12), 64, 3, (3, 3), padding=SAME),
    "stem, wide": problem(2, (9, 300), 3, 200, (3, 3), padding=SAME),
    "stem, shares of channels": problem(1, (9, 40), 3, 520, (3, 3), padding=SAME),
    "one channel": problem(5, (28, 28), 1, 16, (3, 3), padding=SAME),
    "three, unit stride": problem(4, (32, 32), 3, 64, (3, 3), padding=SAME),
    "three to three": problem(4, (13, 16), 3, 3, (3, 3), padding=SAME),
    "to three": problem(3, (14, 14), 64, 3, (3, 3), padding=SAME),
    "odd channels": problem(3, (9, 11), 65, 33, (3, 3), padding=SAME),
    "half vectors": problem(3, (14, 14), 20, 36, (3, 3), (2, 2), SAME),
    "wide channels": problem(2, (7, 5), 1025, 257, (1, 1)),
    "patches of 16": problem(2, (32, 48), 3, 768, (16, 16), (16, 16)),
    "patches of 4": problem(2, (32, 48), 3, 96, (4, 4), (4, 4)),
    "patches of 4, not aligned": problem(2, (32, 44), 3, 96, (4, 4), (4, 4)),
    "patches of 4, many channels": problem(3, (36, 40), 3, 328, (4, 4), (4, 4)),
    "patches of 14": problem(3, (42, 112), 3, 72, (14, 14), (14, 14)),
    "patches of 2, few channels": problem(130, (8, 16), 3, 40, (2, 2), (2, 2)),
    "patches of a row of 144": problem(2, (6, 20), 36, 136, (3, 4), (3, 4)),
    "patches of 4, odd channels": problem(2, (24, 20), 5, 33, (4, 4), (4, 4)),
    "patches of 2": problem(2, (16, 20), 64, 128, (2, 2), (2, 2)),
    "patches of 2, padded": problem(
        2, (17, 20), 40, 128, (2, 2), (2, 2), ((0, 1), (2, 4))
    ),
    "patches of 2, cut": problem(
        3, (16, 24), 36, 64, (2, 2), (2, 2), ((0, 0), (0, -4))
    ),
    "patches and a rest": problem(2, (33, 49), 5, 12, (4, 4), (4, 4)),
    "patches of a row": problem(2, (33, 48), 6, 24, (3, 6), (3, 6)),
    "strided beyond the filter": problem(2, (17, 19), 6, 5, (2, 2), (3, 4)),
    "dilated": problem(2, (23, 24), 2, 8, (5, 5), (3, 3), THREE, (2, 2)),
    "dilated by three": problem(
        2, (23, 24), 12, 20, (3, 3), padding=THREE, dilation=(3, 3)
    ),
    "dilated far": problem(
        1, (300, 11), 8, 8, (3, 1), padding=((150, 150), (0, 0)), dilation=(150, 1)
    ),
    "negative": problem(2, (14, 14), 3, 2, (3, 3), padding=((-2, 1), (1, -2))),
    "padding past the image": problem(
        2, (5, 4), 3, 5, (5, 5), padding=((6, 7), (5, 5))
    ),
    "many samples": problem(300, (5, 5), 3, 9, (3, 3), padding=SAME),
    "to thirteen": problem(2, (13, 131), 136, 13, (4, 3), padding=((1, 2), (0, 1))),
    "to five, seven rows": problem(2, (13, 65), 72, 5, (7, 7), padding=THREE),
    "seven rows of few": problem(2, (20, 66), 6, 72, (7, 5), padding=THREE),
    "strided by four": problem(
        2, (21, 67), 1, 40, (5, 7), (4, 4), padding=((2, 2), (1, 3))
    ),
    "a stride of four in eight": problem(3, (84, 84), 4, 32, (8, 8), (4, 4)),
    "a stride of two in four": problem(5, (20, 20), 32, 64, (4, 4), (2, 2)),
    "strides that pads hold": problem(
        3, (22, 24), 24, 40, (3, 6), (2, 3), ((1, 2), (3, 3))
    ),
    "sixteen to sixteen": problem(4, (17, 32), 16, 16, (3, 3), padding=SAME),
    "eight to many": problem(3, (19, 14), 8, 136, (3, 3), padding=SAME),
    "many to eight": problem(3, (19, 14), 136, 8, (3, 3), padding=SAME),
    "four to many": problem(2, (20, 64), 4, 320, (3, 3), padding=SAME),
    "to three, five rows": problem(
        2, (13, 30), 128, 3, (5, 3), padding=((2, 1), (1, 0))
    ),
    "strided, many of few": problem(2, (21, 135), 7, 72, (3, 4), (2, 2), SAME),
    # Row bands that are parts of rows.
    "long": problem(3, (1, 5003), 4, 72, (1, 15), padding=((0, 0), (7, 7))),
    "long, causal": problem(2, (1, 2560), 1, 32, (1, 7), padding=((0, 0), (6, 0))),
    "long, strided": problem(2, (1, 9001), 3, 40, (1, 8), (1, 3), ((0, 0), (9, 1))),
    "long, dilated": problem(
        2, (1, 4001), 16, 16, (1, 7), padding=((0, 0), (27, 27)), dilation=(1, 9)
    ),
    "long to few": problem(2, (1, 3000), 136, 5, (1, 3), padding=((0, 0), (-3, 8))),
    "long, of three rows": problem(
        2, (3, 2222), 4, 16, (3, 5), padding=((0, 0), (2, 2))
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", EDGES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(EDGES[name], dtype, engine_of(EDGES[name], dtype))


def fields(case):
    """What the CUDA module is asked with; of two axes or three."""
    conv, flat = case.conv, len(case.x) == 4

    def three(values, rest):
        return (rest, *values) if flat else values

    found = dict(N=case.x[0], C=case.x[-1], K=case.w[-1], groups=1)
    for names, sizes in (
        ("DHW", case.x[1:-1]),
        ("TRS", case.w[:-2]),
        ("OPQ", case.y[1:-1]),
    ):
        found |= zip(names, three(sizes, 1), strict=True)
    for name, values, rest in (
        ("stride", conv.strides, 1),
        ("pad", [before for before, _ in conv.padding], 0),
        ("input_dilation", conv.input_dilation, 1),
        ("filter_dilation", conv.filter_dilation, 1),
    ):
        axes = zip("dhw", three(values, rest), strict=True)
        found |= {f"{name}_{axis}": value for axis, value in axes}
    return found


def test_strips_of_wgrad_are_a_tile_a_block_where_there_are_few(native):
    def config(name, n=None):
        case = EDGES[name]
        case = case._replace(x=(n or case.x[0], *case.x[1:]))
        return native("wgrad", fields(case), "bfloat16", H200)["config"]

    assert config("stem, tiles of 112") == "112x64/132"
    assert config("stem") == "64x64/12"
    assert config("stem, more than blocks", 132) == "96x64/132"
    assert config("stem, more than blocks") == "64x64/132"


OPS = ("fprop", "dgrad", "wgrad")
# What TMA cannot express, and bands of rows do not hold.
NOT_OURS = {
    ("dilated far", "fprop"),
    ("dilated far", "dgrad"),
    ("patches of 14", "fprop"),
    ("patches of 14", "wgrad"),
    # A product, in Python.
    ("patches of 14", "dgrad"),
    ("patches of 16", "dgrad"),
    ("patches of a row", "dgrad"),
}


def test_all_else_has_a_kernel(native):
    found = {
        (name, op)
        for name, case in EDGES.items()
        for op in OPS
        if native(op, fields(case), "bfloat16", H200) is None
    }
    assert found == NOT_OURS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", EDGES)
def test_the_path_does_not_depend_on_the_batch(native, name, op):
    case = EDGES[name]
    paths = set()
    for n in (1, 2, 3, 8, 33, 256, 3000):
        many = case._replace(x=(n, *case.x[1:]))
        if (plan := native(op, fields(many), "bfloat16", H200)) is None:
            paths.add(None)
            continue
        assert plan["workspace"] <= 64 << 20
        paths.add((plan["path"], plan["preferred"]))
    # wgrad pads all samples at once, where they are not too many; its sum depends
    # on their number anyway.
    assert len(paths) == 1 or op == "wgrad"


@st.composite
def any_channels(draw):
    def two(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * 2))

    channels = st.one_of(st.integers(1, 12), st.integers(13, 200), st.integers(1, 1025))
    padding = draw(st.tuples(*[st.tuples(*[st.integers(-2, 5)] * 2)] * 2))
    case = problem(
        draw(st.integers(1, 4)),
        two(1, 24),
        draw(channels),
        draw(channels),
        two(1, 7),
        two(1, 4),
        padding,
        two(1, 3),
    )
    assume(all(n >= 0 for n in case.conv.padded_sizes(case.x[1:-1])))
    assume(np.prod(case.y) > 0)
    # The oracle's time.
    assume(np.prod(case.y) * np.prod(case.w[:-1]) < 1e9)
    return case


@pytest.mark.gpu
@given(case=any_channels())
@settings(max_examples=60)
def test_any_channels_are_exact(hopper, case):
    assert_exact(case, "bfloat16", engine_of(case, "bfloat16"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["stem", "one channel", "odd channels", "patches of 4"]
)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["stem", "one channel", "odd channels", "to three", "patches of 4", "to thirteen"],
)
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["stem", "odd channels", "patches of 4"])
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(EDGES[name], "bfloat16", algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        *("stem", "stem, tiles of 112", "stem, more than blocks", "three, unit stride"),
        *("odd channels", "to three", "strided by four"),
    ],
)
def test_what_is_not_finite_stays_where_it_belongs(hopper, name):
    # Columns are padded, and tiles are larger than what is left of an image: what
    # stands there must not reach a sum.
    case = EDGES[name]
    x, w, dy = arrays(case, normal, "bfloat16")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 1] = np.inf
    assert_not_finite_as_by_columns(case, x, w, dy)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("stem", ("strips of", "sweeps of", "strips of")),
        ("to three", ("sweeps of", "strips of", "strips of")),
        ("a stride of four in eight", ("tiles of", "tiles of", "strips of")),
        ("a stride of two in four", ("tiles of", "tiles of", "tiles of")),
        ("sixteen to sixteen", ("tiles of", "tiles of", "tiles of")),
        ("four to many", ("strips of", "sweeps of", "strips of")),
        ("odd channels", ("padded tiles of",) * 3),
        ("wide channels", ("padded tiles of",) * 3),
        ("patches of 16", ("tiles of", "patches by", "tiles of")),
        ("patches of 14", ("im2col, then a GEMM",) * 3),
        ("dilated far", ("cuDNN", "cuDNN", "strips of")),
    ],
)
def test_it_is_the_default_where_it_is_faster(hopper, name, reasons):
    case = EDGES[name]
    x, w, dy = arrays(case, normal, "bfloat16")

    def step(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, **case.kwargs)
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    rows = {row.op: row for row in jc.explain(step, x, w, dy)}
    others = {"cuDNN": "cudnn", "im2col, then a GEMM": "im2col_gemm"}
    for op, reason in zip(OPS, reasons, strict=True):
        assert rows[op].reason.startswith(reason)
        assert rows[op].engine == others.get(reason, "implicit_gemm")
        why = ("does not cover", "would take longer")
        assert any(w in rows[op].reason for w in why) == (reason in others)
