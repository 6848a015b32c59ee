# SPDX-License-Identifier: Apache-2.0
"""f32 on Hopper: large tiles of TF32, and what HIGH is."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import tiles
from fake_gpus import on
from problems import Problem, exact, normal, run, terms, whole
from promises import arrays, bits, params_of

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import tf32x3
from jax_convbatch._primitives import primitives
from jax_convbatch._select import plan

SAME = ((1, 1), (1, 1))


def problem(n, size, c, k, taps, stride=(1, 1), padding=SAME, dilated=(1, 1)):
    conv = oracle.Conv(stride, padding, dilated, (1, 1), 1)
    return Problem((n, *size, c), (*taps, c, k), conv, ("NHWC", "HWIO", "NHWC"))


# wgrad that reads x once for nine taps, tiles of fprop and dgrad, and dgrad's of
# a stride's classes: the operation and its configuration.
TILES = {
    "strips of seven": (problem(64, (30, 20), 96, 160, (3, 3)), "wgrad", "576x64"),
    "strips of eight": (problem(64, (30, 15), 96, 160, (3, 3)), "wgrad", "576x64"),
    "rows that are left out": (
        problem(129, (9, 7), 512, 512, (3, 3), padding=((2, 0), (-1, 3))),
        "wgrad",
        "576x64",
    ),
    "one tile": (problem(64, (14, 14), 64, 64, (3, 3)), "wgrad", "576x64"),
    "256 pixels": (problem(70, (16, 15), 256, 252, (3, 3)), "fprop", "256x128"),
    "224 pixels": (
        problem(35, (39, 40), 132, 252, (3, 3), stride=(2, 2)),
        "fprop",
        "224x128",
    ),
    "192 pixels": (problem(129, (7, 7), 132, 508, (3, 3)), "fprop", "192x128"),
    "160 pixels": (problem(8, (16, 15), 132, 1284, (3, 3)), "fprop", "160x128"),
    "224 pixels of fprop, 64 channels": (
        problem(67, (20, 19), 68, 60, (3, 3)),
        "fprop",
        "224x64",
    ),
    "192 pixels of fprop, 64 channels": (
        problem(66, (20, 19), 68, 60, (3, 3)),
        "fprop",
        "192x64",
    ),
    "160 pixels of fprop, 64 channels": (
        problem(89, (20, 19), 68, 60, (3, 3)),
        "fprop",
        "160x64",
    ),
    "128 pixels, a transposed filter": (
        problem(124, (16, 15), 300, 200, (3, 3)),
        "fprop",
        "128x128t",
    ),
    "shared taps, a transposed filter": (
        problem(40, (60, 61), 156, 60, (3, 3), padding=((2, 0), (0, 2))),
        "fprop",
        "256x64t",
    ),
    "192 pixels of dgrad": (
        problem(27, (30, 31), 124, 132, (3, 3)),
        "dgrad",
        "192x128",
    ),
    "160 pixels of dgrad": (
        problem(8, (16, 15), 1284, 132, (3, 3)),
        "dgrad",
        "160x128",
    ),
    "224 pixels, 64 channels": (
        problem(33, (30, 29), 60, 132, (3, 3)),
        "dgrad",
        "224x64",
    ),
    "192 pixels, 64 channels": (
        problem(18, (28, 28), 188, 68, (3, 3)),
        "dgrad",
        "192x64",
    ),
    "160 pixels, 64 channels": (
        problem(38, (30, 30), 60, 68, (3, 3)),
        "dgrad",
        "160x64",
    ),
    "weights that stay, 64 channels": (
        problem(40, (30, 31), 252, 300, (1, 1), padding=((0, 0), (0, 0))),
        "fprop",
        "128x64",
    ),
    "weights that stay, 128 channels": (
        problem(41, (30, 31), 100, 260, (1, 1), (2, 1), ((0, 1), (2, 0))),
        "fprop",
        "128x128",
    ),
    "weights that stay, 64 of dgrad": (
        problem(40, (30, 31), 140, 196, (1, 1), padding=((0, 0), (0, 0))),
        "dgrad",
        "128x64",
    ),
    "weights that stay, 128 of dgrad": (
        problem(40, (30, 31), 260, 124, (1, 1), padding=((0, 1), (2, 0))),
        "dgrad",
        "128x128",
    ),
    "classes of a stride": (
        problem(24, (40, 39), 196, 68, (3, 3), stride=(2, 2)),
        "dgrad",
        "128x128",
    ),
    "classes without a tap": (
        problem(40, (40, 39), 196, 68, (1, 1), stride=(2, 2), padding=((0, 0), (0, 0))),
        "dgrad",
        "128x128",
    ),
}


@pytest.mark.parametrize("name", TILES)
def test_there_are_large_tiles(native, monkeypatch, name):
    """What the next test is of, where there is no GPU."""
    on(monkeypatch, "9.0")
    case, op, config = TILES[name]
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in (case.x, case.w))
    plans = targets.implicit_gemm_plans(op, params_of(case, x, w).geometry, "float32")
    (found,) = (each for each in plans if each["config"].split("/")[0] == config)
    # As the handler takes it.
    assert found["workspace"] % 256 == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", TILES)
def test_large_tiles_of_f32_are_exact(hopper, monkeypatch, name):
    case, op, config = TILES[name]
    tiles.given(monkeypatch, **{op: config})
    x, w, dy = arrays(case, functools.partial(whole, most=1), "float32")

    def step(x, w, dy):
        y, pullback = jax.vjp(
            functools.partial(jc.conv_general_dilated, **case.kwargs), x, w
        )
        return y, pullback(dy)

    (row,) = (row for row in jc.explain(step, x, w, dy) if row.op == op)
    assert config in row.reason
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    want = run(case, x, w, dy, algorithm="im2col_gemm")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


TRANSPOSED = {
    "3x3": problem(5, (14, 14), 64, 64, (3, 3)),
    "odd": problem(7, (13, 17), 76, 140, (3, 5), padding=((1, 1), (2, 2))),
    "strided": problem(9, (15, 16), 64, 72, (3, 3), (2, 2)),
    "shared taps": problem(6, (20, 60), 36, 132, (3, 3)),
    "large": TILES["128 pixels, a transposed filter"][0],
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSPOSED)
def test_every_configuration_gives_the_same_bits(hopper, name):
    """Of fprop, the filter transposed or not."""
    case = TRANSPOSED[name]
    x, w, _ = arrays(case, normal, "float32")
    params = params_of(case, x, w)
    names = plan.configs("implicit_gemm", "fprop", params.geometry, "float32", "cuda")
    transposed = {"128x128t", "256x64t"}
    # Of longer sums alone: transposing takes longer than it saves.
    assert (transposed < set(names)) == (math.prod(case.w[:-1]) >= 512)
    want = None
    for config in names:
        chosen = dataclasses.replace(params, algorithm="implicit_gemm", config=config)
        fun = functools.partial(
            primitives.bind, "fprop", params=chosen, out_dtype=np.dtype("float32")
        )
        for _ in range(3):
            got = bits(jax.jit(fun)(x, w))
            want = got if want is None else want
            np.testing.assert_array_equal(got, want, err_msg=config)


CASES = {
    "3x3": problem(5, (14, 14), 64, 64, (3, 3)),
    "odd channels": problem(3, (9, 11), 21, 35, (3, 3)),
    "strided": problem(3, (15, 16), 64, 72, (3, 3), (2, 2)),
    "transposed": problem(2, (9, 8), 32, 48, (3, 3), dilated=(2, 2)),
    "shared taps": problem(4, (9, 61), 36, 68, (3, 3)),
    "many channels": problem(2, (7, 7), 520, 256, (3, 3)),
}


def tf32(a):
    """f32 rounded to the nearest number of 11 significant bits, as copies do."""
    return ((a.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def products(a, b):
    """What the multiplier forms of pairs of numbers, each of three."""
    first = tf32x3.parts(jnp.asarray(a)[:, None], 1, first=True)
    second = tf32x3.parts(jnp.asarray(b)[:, None], 1, first=False)
    return np.concatenate(
        [
            tf32(np.asarray(u)).astype(np.float64) * tf32(np.asarray(v))
            for u, v in zip(first, second, strict=True)
        ],
        axis=1,
    )


def test_three_products_are_the_product_but_for_two_to_the_minus_21():
    a, b = (normal(seed, 10_000, "float32") for seed in range(2))
    right = a.astype(np.float64) * b
    one = np.abs(products(a, b)[:, 0] / right - 1)
    three = np.abs(products(a, b).sum(1) / right - 1)
    assert one.max() > 2.0**-12
    assert three.max() < 2.0**-21


def test_infinities_and_nan_are_what_one_product_gives():
    a = np.float32([np.inf, np.inf, -np.inf, np.inf, np.nan, np.inf, 1 / 3])
    b = np.float32([1, -1 / 3, 1 / 3, 0, 1, np.inf, -np.inf])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(products(a, b).sum(1), a * b)


@pytest.mark.parametrize("op", primitives.OPS)
def test_the_products_meet_the_parts_that_belong_together(op):
    """With the CPU's kernels, which multiply parts exactly."""
    case, op = CASES["odd channels"], primitives.OPS[op]
    x, w, dy = arrays(case, normal, "float32")
    given = {"x": x, "w": w, "y": dy}
    params = params_of(case, x, w)
    longer = tf32x3.geometry(params.geometry, op.contraction)
    high, rest = (
        plan.plan_of(
            params.with_sizes(**g._asdict()), op.name, "float32", "float32", "cpu"
        )
        for g in (params.geometry, longer)
    )
    chosen = tf32x3.ThreeProducts.like(high, high=high, rest=rest)
    got = chosen.run(
        op,
        *(given[role] for role in op.operands),
        params,
        np.dtype("float32"),
    )
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))[op.result]
    error = np.linalg.norm(got - right) / np.linalg.norm(right)
    assert error < 2.0**-20


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_high_leaves_what_the_multiplier_cuts_off(hopper, name):
    case = CASES[name]
    args = arrays(case, normal, "float32")
    right = exact(case, *args)

    def errors(precision):
        got = run(case, *args, precision=precision, algorithm="implicit_gemm")
        return [
            np.linalg.norm(oracle.float64(a) - b) / np.linalg.norm(b)
            for a, b in zip(got, right, strict=True)
        ]

    # Each product is off by 2^-21 at most; the multiplier cuts off every sum of eight
    # of them at 2^-23 of what it adds to.
    sums = [count / 8 for count in terms(case)]
    for error, count in zip(errors("high"), sums, strict=True):
        assert error < 3e-7 + count * 2.0**-25
    assert min(errors("default")) > 1e-4


@pytest.mark.gpu
def test_high_is_planned_as_three_products(hopper):
    x, w, _ = arrays(CASES["odd channels"], normal, "float32")

    def explained(**options):
        conv = functools.partial(jc.conv, padding=1, precision="high", **options)
        step = jax.value_and_grad(lambda x, w: conv(x, w).sum(), argnums=(0, 1))
        return jc.explain(step, x, w)

    rows = explained()
    assert {row.engine for row in rows} == {"implicit_gemm"}
    assert all("three products of TF32" in row.reason for row in rows)
    # Parts of x and w, and y again, take 196 kB.
    conv = functools.partial(jc.conv, padding=1, precision="high")
    for limit, engine in ((200_000, "im2col_gemm"), (1_000_000, "implicit_gemm")):
        fun = functools.partial(conv, workspace_limit=limit)
        assert jc.explain(fun, x, w)[0].engine == engine


@pytest.mark.gpu
def test_high_is_highest_where_that_has_tensor_cores(hopper):
    args = arrays(CASES["3x3"], normal, "float32")

    def step(precision):
        conv = functools.partial(jc.conv, padding=1, precision=precision)

        def all_three(x, w, dy):
            y, pullback = jax.vjp(conv, x, w)
            return y, pullback(dy)

        return all_three

    rows = jc.explain(step("high"), *args)
    assert all("six products" in row.reason for row in rows)
    high, highest = (jax.jit(step(p))(*args) for p in ("high", "highest"))
    for a, b in zip(jax.tree.leaves(high), jax.tree.leaves(highest), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.gpu
def test_a_samples_bits_at_high_do_not_depend_on_its_batch(hopper):
    case = problem(33, (14, 14), 64, 64, (3, 3))
    x, w, _ = arrays(case, normal, "float32")
    conv = jax.jit(functools.partial(jc.conv, padding=1, precision="high"))
    want = bits(conv(x, w))
    for n in (1, 2, 8):
        np.testing.assert_array_equal(bits(conv(x[-n:], w)), want[-n:])
