# SPDX-License-Identifier: Apache-2.0
"""Long sums of few outputs an image: the Hopper engine forms them in K slices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from fake_gpus import on
from problems import CHANNELS_LAST, Problem, exact, normal, run, tf32
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_configurations_agree,
    assert_exact,
    assert_right_but_for_rounding,
    bits,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._native import hopper, targets
from jax_convbatch._select.plan import make_plan


def problem(n, size, c, k, taps=None, stride=1, pad=1):
    """Of two axes or three."""
    rank = len(size)

    def axes(value):
        return value if isinstance(value, tuple) else (value,) * rank

    ones = axes(1)
    conv = oracle.Conv(axes(stride), ((pad, pad),) * rank, ones, ones, 1)
    return Problem((n, *size, c), (*(taps or axes(3)), c, k), conv, CHANNELS_LAST[rank])


# In fprop, dgrad or both, as c and k say.
LONG = {
    "both": problem(8, (7, 7), 512, 512),
    "strided": problem(5, (15, 13), 520, 264, stride=2),
    "dgrad": problem(9, (7, 8), 72, 520),
    "1x1": problem(33, (8, 8), 4096, 24, (1, 1), pad=0),
    "one pixel": problem(3, (1, 1), 520, 136),
    "many tiles": problem(300, (7, 7), 512, 136),
    "volumes": problem(2, (4, 8, 8), 256, 320),
    "strided volumes": problem(5, (3, 15, 13), 264, 264, stride=2),
    "volumes of few pixels": problem(3, (2, 3, 5), 392, 248),
    "many volumes": problem(70, (3, 7, 7), 256, 136),
}
# In f32, of fprop, dgrad or both.
LONG_F32 = {
    "both": problem(5, (8, 7), 1140, 1136),
    "strided": problem(3, (15, 13), 1140, 260, stride=2),
    "1x1": problem(33, (4, 4), 10240, 24, (1, 1), pad=0),
    "many tiles": problem(200, (7, 7), 1136, 136),
    "channels of no quad": problem(5, (9, 7), 250, 254, (7, 7), pad=3),
    "volumes": problem(2, (4, 8, 8), 256, 320),
    "strided volumes": problem(2, (4, 16, 16), 256, 320, stride=2),
    "volumes of few pixels": problem(5, (2, 3, 5), 252, 260),
    "volumes, channels of no quad": problem(2, (3, 5, 6), 250, 130),
}
# Clusters of blocks, with channels and with pixels as rows; two warpgroups in turns.
FEW, SOME, MANY = "56x128", "64x128", "128x128"


# In how many K slices fprop and dgrad are summed in f32; 1: whole.
SLICES = {
    "8x8 3840 to 1280": (problem(4, (8, 8), 3840, 1280), 6, 2),
    "8x8 1280": (problem(4, (8, 8), 1280, 1280), 6, 6),
    "one slice an SM": (problem(4, (4, 8, 8), 320, 2048), 1, 6),
    "few stages of a slice": (problem(4, (2, 5, 5), 256, 64), 6, 1),
    "few channels": (problem(4, (4, 4), 1280, 64), 8, 1),
    "4x8x8 320": (problem(4, (4, 8, 8), 320, 320), 6, 6),
    "strided volumes": (problem(4, (4, 16, 16), 256, 320, stride=2), 6, 1),
    "many outputs": (problem(4, (13, 5), 1280, 1280), 1, 1),
    "short": (problem(4, (8, 8), 1120, 1120), 1, 1),
    "1x1": (problem(4, (8, 8), 1280, 1280, (1, 1), pad=0), 1, 1),
}


def plans_of(op, case, dtype, n):
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((n, *case.x[1:]), case.w))
    return targets.implicit_gemm_plans(op, params_of(case, x, w).geometry, dtype)


@pytest.mark.parametrize("name", SLICES)
def test_the_k_slices_of_f32_do_not_depend_on_the_batch(native, monkeypatch, name):
    on(monkeypatch, "9.0")
    case, *wanted = SLICES[name]
    outputs = (("fprop", case.y), ("dgrad", case.x))
    for (op, shape), count in zip(outputs, wanted, strict=True):
        for n in (*range(1, 40), 64, 100, 128, 256):
            partials = 4 * count * n * np.prod(shape[1:])
            plans = {p["config"]: p for p in plans_of(op, case, "float32", n)}
            if count == 1:
                assert not plans.keys() & {"128x64"}
                continue
            # A block that adds all K slices of its tile needs no workspace.
            got = {config: p["workspace"] for config, p in plans.items()}
            assert got == {
                **dict.fromkeys(("64x64", "128x64", "256x64"), -partials // 256 * -256),
                **dict.fromkeys(("160x64", "160x128"), 0),
            }
            assert not any(p["epilogue"] or p["signs"] for p in plans.values())
            if n <= 2:
                assert next(iter(plans.values()))["workspace"] > 0


def test_columns_of_samples_are_multiplied_with_one_workspace(native, monkeypatch):
    """Of deformable dx, which asks for that of one sample."""
    on(monkeypatch, "9.0")
    case = problem(8, (8, 8), 64, 10240)
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in (case.x, case.w))
    g = params_of(case, x, w).geometry
    sizes = {hopper.column_plan("dgrad", g, "float32", n)["workspace"] for n in (1, 8)}
    assert len(sizes) == 1


@pytest.mark.parametrize("limit", [0, 1 << 20, 16 << 20])
def test_the_batch_does_not_decide_whether_pieces_of_volumes_fit(
    native, monkeypatch, limit
):
    """Pieces that would have partial sums in small batches."""
    on(monkeypatch, "9.0")
    case = problem(1, (8, 7, 7), 1280, 320, (1, 3, 3), pad=0)
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in (case.x, case.w))
    g = params_of(case, x, w).geometry
    f32 = np.dtype("float32")
    for n in (1, 4, 64):
        chosen = make_plan(
            *("fprop", g._replace(N=n), f32, f32, "cuda", "implicit_gemm"),
            workspace_limit=limit,
        )
        assert chosen.workspace_bytes <= limit


@pytest.mark.parametrize(
    ("case", "sliced"),
    [
        (problem(4, (4, 8, 8), 256, 320), True),
        (problem(4, (8, 8, 8), 320, 320), False),
        (problem(4, (4, 8, 8), 192, 192), False),
        (problem(4, (7, 7), 512, 512), True),
        (problem(4, (9, 8), 512, 512), False),
    ],
)
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_which_sums_of_16_bits_come_in_k_slices(native, monkeypatch, op, case, sliced):
    """Tiles of clusters are of these alone."""
    on(monkeypatch, "9.0")
    for n in (1, 2, 8, 33, 256):
        names = {p["config"] for p in plans_of(op, case, "bfloat16", n)}
        assert ({"64x64", FEW, "104x128", MANY} <= names and len(names) == 8) is sliced


def tiles(case, n):
    """Of fprop and dgrad with n samples."""
    x, w, dy = arrays(case._replace(x=(n, *case.x[1:])), normal, "bfloat16")

    def both(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, **case.kwargs)
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    rows = jc.explain(both, x, w, dy)
    return {row.op: row.reason for row in rows}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LONG)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(LONG[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "strided", "volumes", "strided volumes"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(LONG[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_ways_to_add_chunks_give_the_same_bits(hopper, dtype):
    case = LONG["both"]
    for op in ("fprop", "dgrad"):
        assert FEW in tiles(case, 8)[op]
        assert SOME in tiles(case, 9)[op]
        assert "136x128" in tiles(case, 16)[op]
        assert MANY in tiles(case, 256)[op]
    batches = (1, 2, 3, 8, 9, 16, 33, 256)
    assert_batch_invariant(case._replace(x=(256, *case.x[1:])), dtype, batches=batches)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["volumes", "strided volumes", "many volumes"])
def test_volumes_have_the_same_bits_in_every_tile_and_batch(hopper, name):
    case = LONG[name]
    assert_configurations_agree(case, "bfloat16")
    assert_batch_invariant(case, "bfloat16", batches=(1, 2, 5, 33, 70))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "many tiles", "volumes"])
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(LONG[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", LONG_F32)
def test_whole_numbers_are_exact_in_f32(hopper, name):
    assert_exact(LONG_F32[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "strided", "volumes", "strided volumes"])
def test_real_numbers_are_right_in_f32(hopper, name):
    """As TF32 holds them."""
    case = LONG_F32[name]
    x, w, dy = (tf32(a) for a in arrays(case, normal, "float32"))
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    right = exact(case, x, w, dy)
    size = exact(case, *(abs(oracle.float64(a)) for a in (x, w, dy)))
    for a, b, magnitude in zip(got, right, size, strict=True):
        # The multiplier cuts off what it adds.
        assert np.all(abs(oracle.float64(a) - b) <= 2.0**-12 * magnitude)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LONG_F32)
def test_f32_has_the_same_bits_in_every_tile_and_batch(hopper, name):
    case = LONG_F32[name]
    assert_configurations_agree(case, "float32")
    assert_batch_invariant(case, "float32", batches=(1, 2, 5, 33, 70))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "many tiles", "volumes"])
def test_a_hundred_runs_of_f32_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(LONG_F32[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "volumes"])
def test_f32_has_the_same_bits_without_workspace(hopper, name):
    case = LONG_F32[name]
    x, w, _ = arrays(case, normal, "float32")
    wanted = functools.partial(
        jc.conv_general_dilated, algorithm="implicit_gemm", **case.kwargs
    )
    limited = functools.partial(wanted, workspace_limit=0)
    rows = [jc.explain(fun, x, w)[0] for fun in (wanted, limited)]
    assert rows[0].workspace_bytes > rows[1].workspace_bytes == 0
    np.testing.assert_array_equal(
        bits(jax.jit(wanted)(x, w)), bits(jax.jit(limited)(x, w))
    )


@pytest.mark.gpu
def test_a_layer_of_f32_has_the_convolution_s_bits(hopper):
    case = LONG_F32["both"]
    x, w, _ = arrays(case, normal, "float32")
    bias = normal(3, case.w[-1:], "float32")
    ours = dict(algorithm="implicit_gemm")
    layer = functools.partial(jc.conv_bias_act, activation="relu", **ours)
    y = jax.jit(functools.partial(jc.conv_general_dilated, **case.kwargs, **ours))(x, w)
    np.testing.assert_array_equal(
        bits(jax.jit(layer)(x, w, bias)), bits(jnp.maximum(y + bias, 0))
    )
