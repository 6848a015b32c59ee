# SPDX-License-Identifier: Apache-2.0
"""Three spatial axes on Hopper as they lie in memory."""

import functools

import jax
import numpy as np
import pytest
from problems import whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_configurations_agree,
    assert_exact,
    assert_right_but_for_rounding,
)
from test_depth import NCDHW, volume
from test_hopper_plan import H200

import jax_convbatch as jc
from jax_convbatch._shapes.geometry import ConvGeometry

ENGINES = ("implicit_gemm", "im2col_gemm")
CASES = {
    "one box": volume(2, (5, 6, 7), 64, 64, (3, 3, 3)),
    "odd channels": volume(3, (4, 7, 5), 120, 184, (3, 3, 3)),
    "uneven taps": volume(2, (7, 6, 9), 56, 64, (5, 1, 2), pad=(2, 0, 1)),
    "stride 2": volume(2, (7, 8, 6), 64, 128, (3, 3, 3), 2),
    "strides": volume(2, (9, 8, 11), 64, 72, (2, 3, 2), (3, 1, 4), (1, 0, 2)),
    "dilated": volume(
        2, (9, 7, 8), 64, 64, (3, 2, 3), pad=(2, 1, 1), dilation=(2, 1, 3)
    ),
    "more padding than slices": volume(2, (2, 3, 1), 56, 64, (3, 3, 3), pad=(7, 9, 4)),
    "negative padding": volume(2, (8, 6, 6), 64, 48, (3, 3, 3), pad=(-2, 1, -1)),
    "one output slice": volume(5, (3, 8, 8), 64, 64, (3, 3, 3), pad=(0, 1, 1)),
    "channels first": volume(2, (4, 6, 5), 64, 128, (3, 3, 3), specs=NCDHW),
    "many tiles": volume(5, (9, 31, 33), 64, 184, (3, 3, 3)),
    "many narrow tiles": volume(9, (13, 34, 39), 48, 64, (3, 2, 1), pad=0),
    # Of f32's widest tile, the last one's second box begins past the tensor.
    "tails of tiles": volume(3, (7, 31, 45), 64, 64, (3, 3, 3)),
    # Pixels of a stride along rows as channels.
    "folded": volume(2, (6, 8, 10), 32, 64, (2, 2, 2), 2, 0),
    "folded, more taps": volume(
        2, (7, 6, 12), 32, 72, (3, 2, 4), (1, 2, 2), (1, 0, (2, 0))
    ),
    "tiles of all taps": volume(2, (13, 30, 44), 128, 128, (3, 3, 3), pad=(2, 1, 0)),
    # Slices that tiles fill: the first leave out taps that others have.
    "few slices": volume(3, (3, 16, 24), 64, 128, (3, 3, 3), pad=((2, 0), 1, 1)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["one box", "odd channels", "stride 2", "many tiles"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")


# Slices that tiles fill, so that they leave out other taps than the next.
FEW_SLICES = {
    "past alone": volume(2, (3, 16, 24), 64, 136, (3, 3, 3), pad=((2, 0), 1, 1)),
    "on both sides": volume(3, (2, 19, 17), 72, 64, (3, 3, 3)),
    "one slice": volume(3, (1, 16, 16), 64, 64, (3, 3, 3), pad=(2, 1, 1)),
    "future alone": volume(2, (4, 24, 16), 96, 96, (3, 1, 1), pad=((0, 2), 0, 0)),
    "dilated": volume(
        *(2, (5, 16, 16), 64, 96, (4, 3, 3)),
        pad=((6, 3), 1, 1),
        dilation=(3, 1, 1),
    ),
    "strides": volume(2, (5, 33, 32), 64, 72, (3, 3, 3), 2, ((2, 1), 1, 1)),
    "strides of images": volume(
        2, (3, 34, 32), 72, 128, (3, 3, 3), (1, 2, 2), ((2, 0), 1, 1)
    ),
    "padding beyond the taps": volume(
        2, (2, 16, 16), 64, 64, (3, 3, 3), pad=((5, 4), 1, 1)
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FEW_SLICES)
def test_taps_of_padding_are_left_out_without_a_trace(hopper, name, dtype):
    case = FEW_SLICES[name]
    assert_exact(case, dtype)
    found = assert_configurations_agree(case, dtype)
    assert any(len(configs) > 2 for configs in found.values())
    assert_batch_invariant(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["one box", "odd channels", "strides"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name, dtype):
    assert_batch_invariant(CASES[name], dtype)
    assert_a_hundred_runs_agree(CASES[name], dtype, algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "name", ["one box", "odd channels", "stride 2", "many tiles", "few slices"]
)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("more", [False, True])
def test_a_layer_is_what_follows_its_convolution(hopper, name, dtype, activation, more):
    """Whole numbers: sums are exact, so both engines round the same ones."""
    case = CASES[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    bias = np.arange(case.w[-1]).astype(dtype) % 5 - 2
    rest = dict(residual=dy, scale=1 + np.abs(bias)) if more else {}

    def layer(algorithm, x, w):
        return jc.conv_bias_act(
            *(x, w, bias),
            activation=activation,
            strides=case.conv.strides,
            padding=case.conv.padding,
            algorithm=algorithm,
            **rest,
        )

    def run(algorithm):
        y, pullback = jax.vjp(functools.partial(layer, algorithm), x, w)
        return y, layer(algorithm, x, w), pullback(dy) if activation != "gelu" else ()

    for a, b in zip(*map(jax.tree.leaves, map(run, ENGINES)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", ["scale", "gelu"])
@pytest.mark.parametrize(
    "sizes", [(16, (2, 32, 32), 64, 32), (2, (1, 64, 64), 48, 160)], ids=str
)
def test_any_epilogue_of_narrow_tiles(hopper, sizes, epilogue):
    """Rows of one slice of these would be bands of few channels in two axes."""
    case = volume(*sizes, (3, 3, 3))
    x, w, _ = arrays(case, functools.partial(whole, most=1), "bfloat16")
    of_channels = (np.arange(sizes[-1]) % 3).astype(x.dtype)
    rest = {"scale": of_channels} if epilogue == "scale" else {"activation": "gelu"}
    y, right = (jc.conv_bias_act(x, w, algorithm=a, **rest) for a in ENGINES)
    np.testing.assert_array_equal(y, right)


@pytest.mark.gpu
@pytest.mark.parametrize("c", [256, 320])
def test_wgrad_with_all_taps_of_a_slice_in_a_tile(hopper, c):
    """A cluster for each tile, and helpers for all."""
    case = volume(1, (6, 28, 28), c, 320, (3, 3, 3))
    x, _, dy = arrays(case, functools.partial(whole, most=1), "bfloat16")
    dw, right = (
        jc.ops.wgrad(x, dy, case.w, padding=1, algorithm=algorithm)
        for algorithm in ENGINES
    )
    np.testing.assert_array_equal(dw, right)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_copied(hopper, name):
    case = CASES[name]
    x, w, dy = (
        case.user(role, a)
        for role, a in zip("xwy", arrays(case, whole, "bfloat16"), strict=True)
    )

    def both(x, w, dy):
        kwargs = case.kwargs | {"algorithm": "implicit_gemm"}
        conv = functools.partial(jc.conv_general_dilated, **kwargs)
        y, pullback = jax.vjp(conv, x, w)
        return y, pullback(dy)

    rows = {row.op: row for row in jc.explain(both, x, w, dy)}
    if name == "folded, more taps":  # whose dgrad has taps of depth as channels
        assert rows.pop("dgrad").workspace_bytes < 1 << 17
    reasons = [row.reason for row in rows.values()]
    assert all("; tiles of" in why or "; halo tiles of" in why for why in reasons)
    assert all(rows[op].workspace_bytes == 0 for op in {*rows} - {"wgrad"})


def fields(op_sizes, **changes):
    n, size, c, k, taps = op_sizes
    ones = (1, 1, 1)
    g = ConvGeometry(
        *(n, *size, c, k, *taps, *size, 1),
        stride=ones,
        pad=tuple(t // 2 for t in taps),
        input_dilation=ones,
        filter_dilation=ones,
    )._replace(**changes)
    return {name: int(value) for name, value in g.attribute().items()}


VOLUME = (2, (16, 28, 28), 128, 128, (3, 3, 3))


def test_tiles_grow_with_the_batch(native):
    def pixels(op, n):
        shape = (n, (4, 28, 28), *VOLUME[2:])
        config = native(op, fields(shape), "bfloat16", H200)["config"]
        return int(config.split("x")[0])

    for op in ("fprop", "dgrad"):
        assert pixels(op, 1) < pixels(op, 32)


def test_wgrad_of_many_pixels_reads_x_once_for_all_taps_of_a_slice(native):
    shape = (2, (13, 30, 44), 128, 128, (3, 3, 3))
    g = fields(shape, pad=(2, 1, 0), O=15, Q=42)
    assert native("wgrad", g, "bfloat16", H200)["config"].startswith("576x64")


def test_what_they_leave_to_copies(native):
    def plan(op, dtype="bfloat16", shape=VOLUME, **changes):
        return native(op, fields(shape, **changes), dtype, H200)

    assert plan("fprop")["workspace"] == plan("dgrad")["workspace"] == 0
    for op in ("fprop", "dgrad", "wgrad"):
        for dtype in ("bfloat16", "float16", "float32"):
            assert plan(op, dtype)["epilogue"] == (op == "fprop")
            assert plan(op, dtype, stride=(2, 2, 2), O=8, P=14, Q=14)

    # Side by side, the taps of few channels fill a box.
    def of_inputs(op, c, dtype="bfloat16"):
        return plan(op, dtype, (2, (16, 28, 28), c, 128, (3, 3, 3)))

    assert of_inputs("fprop", 16) is None
    assert of_inputs("fprop", 24) is None
    assert of_inputs("fprop", 32)
    assert of_inputs("fprop", 48) and of_inputs("wgrad", 48)
    assert of_inputs("fprop", 16, "float32") is None
    assert of_inputs("fprop", 32, "float32")
    # Rows of which three taps share their pixels are walked further.
    wide = dict(pad=(1, 1, 16), Q=58)
    assert plan("fprop", **wide) and plan("fprop", "float32", **wide) is None
    # The engine's corners are of five bits, its offsets of five without a sign.
    assert plan("fprop", pad=(17, 1, 1), O=48) is None
    assert plan("fprop", filter_dilation=(16, 1, 1), pad=(16, 1, 1)) is None
