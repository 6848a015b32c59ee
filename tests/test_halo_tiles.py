# SPDX-License-Identifier: Apache-2.0
"""Hopper's tiles whose pixels are copied once for all taps: the bits of others."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiles
from fake_gpus import on
from problems import normal
from promises import (
    arrays,
    assert_configurations_agree,
    assert_exact,
    assert_same_bits,
    bits,
    params_of,
)
from test_depth import volume
from test_implicit_gemm import SAME, problem
from test_layer_hopper import layer

import jax_convbatch as jc
from jax_convbatch._select import plan

HALOS = ("128x64h", "128x96h", "128x128h", "128x160h")
OTHER = {"bfloat16": "128x128", "float16": "128x128", "float32": "256x64"}

CASES = {
    "below each other": problem(3, (32, 24), 128, 160, (3, 3), padding=SAME),
    "an odd number of squares": problem(5, (8, 13), 72, 104, (3, 3), padding=SAME),
    "squares of two rows": problem(3, (19, 20), 64, 200, (3, 3), padding=SAME),
    "no padding": problem(2, (21, 18), 96, 64, (3, 3)),
    "5x5": problem(2, (31, 30), 64, 96, (5, 5), padding=((2, 2), (2, 2))),
    "dilated": problem(
        2, (30, 33), 80, 136, (2, 3), padding=((2, 1), (1, 2)), dilation=(2, 1)
    ),
    "more padding on one side": problem(
        2, (15, 16), 64, 72, (3, 2), padding=((4, -1), (-2, 3))
    ),
    "a row": problem(3, (1, 300), 136, 96, (1, 5), padding=((0, 0), (2, 2))),
    "a dilated row": problem(
        2, (1, 129), 64, 128, (1, 3), padding=((0, 0), (18, 0)), dilation=(1, 9)
    ),
    "few channels": problem(3, (20, 21), 40, 32, (3, 3), padding=SAME),
    "a volume": volume(2, (5, 12, 11), 96, 64, (3, 3, 3)),
    "a volume of few rows": volume(3, (7, 8, 9), 64, 160, (3, 3, 3)),
    "slices of the past": volume(
        2, (4, 16, 8), 96, 128, (3, 3, 3), pad=((2, 0), (1, 1), (1, 1))
    ),
    "dilated along the depth": volume(
        1,
        (6, 9, 16),
        64,
        96,
        (2, 3, 3),
        pad=((2, 1), (1, 1), (1, 1)),
        dilation=(3, 1, 1),
    ),
}


def params(case, dtype):
    shapes = (jax.ShapeDtypeStruct(shape, dtype) for shape in (case.x, case.w))
    return params_of(case, *shapes)


def configs(op, case, dtype="bfloat16"):
    geometry = params(case, dtype).geometry
    return plan.configs("implicit_gemm", op, geometry, dtype, "cuda")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_the_next_tests_have_halo_tiles(native, monkeypatch, op, name, dtype):
    on(monkeypatch, "9.0")
    names = configs(op, CASES[name], dtype)
    assert set(HALOS) < set(names)
    assert len(set(names)) == len(names)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("config", HALOS)
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, monkeypatch, name, config, dtype):
    tiles.given(monkeypatch, fprop=config, dgrad=config)
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_every_tile_gives_the_same_bits(hopper, dtype, name):
    for names in assert_configurations_agree(CASES[name], dtype).values():
        assert set(HALOS) < set(names)


def forward_and_backward(fun, x, w, dy):
    y, pullback = jax.vjp(fun, x, w)
    return fun(x, w), y, pullback(dy)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "activation"),
    [
        ("bfloat16", "relu"),
        ("bfloat16", "gelu"),
        ("float16", None),
        ("float32", "relu"),
        ("float32", "silu"),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "below each other",
        "an odd number of squares",
        "no padding",
        "a row",
        "few channels",
        "a volume",
    ],
)
def test_layers_have_the_same_bits(hopper, monkeypatch, name, dtype, activation):
    """With each operand, and what backward keeps: z or a bitmask."""
    case = CASES[name]
    x, w, residual = arrays(case, normal, dtype)
    bias = normal(3, case.w[-1:], dtype)
    scale = normal(4, case.w[-1:], dtype)
    dy = normal(5, case.y, dtype)
    given = [
        {"bias": bias},
        {"bias": bias, "residual": residual},
        {"residual": residual},
        {"scale": scale, "bias": bias},
        {"scale": scale, "residual": residual},
    ]
    for operands in given:
        want = None
        for config in (OTHER[dtype], *HALOS):
            tiles.given(monkeypatch, fprop=config)
            fun = layer(case, activation, **operands)
            got = jax.jit(functools.partial(forward_and_backward, fun))(x, w, dy)
            assert_same_bits(got[0], got[1], config)
            want = got if want is None else want
            assert_same_bits(got, want, f"{config} {[*operands]}")
            jax.clear_caches()


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_wide_layers_of_unets_take_them(native, monkeypatch, op):
    on(monkeypatch, "9.0")
    case = problem(8, (64, 64), 640, 320, (3, 3), padding=SAME)
    assert configs(op, case)[0] in HALOS


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("n", [1, 8, 256])
def test_layers_are_one_kernel_in_every_batch(native, monkeypatch, n, dtype):
    on(monkeypatch, "9.0")
    for case in (
        problem(n, (32, 32), 96, 192, (5, 5), padding=((2, 2), (2, 2))),
        problem(n, (75, 75), 48, 96, (3, 3), padding=SAME),
        problem(n, (75, 75), 64, 64, (3, 3), padding=SAME),
    ):
        auto = dataclasses.replace(params(case, dtype), algorithm="auto")
        chosen = plan.plan_of(auto, "fprop", dtype, dtype, "cuda")
        assert chosen.engine == "implicit_gemm"
        assert chosen.epilogue and chosen.signs


@pytest.mark.gpu
def test_neighbours_outside_of_an_image_are_not_read(hopper):
    """Not even to be multiplied by zero: images end in nan."""
    case = problem(3, (16, 16), 64, 128, (3, 3), padding=SAME)
    x, w, _ = arrays(case, normal, "bfloat16")
    clean = np.asarray(jc.conv(x[1:2], w))
    x[0] = x[2] = np.nan
    np.testing.assert_array_equal(bits(jc.conv(x, w)[1:2]), bits(clean))
