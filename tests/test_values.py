# SPDX-License-Identifier: Apache-2.0
"""Every engine's y, dx, dw and db are within rounding of the exact ones."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOATS, Problem, exact, normal, problems, run, terms, whole

import jax_convbatch as jc
from jax_convbatch._api import canonical
from jax_convbatch._plans.kinds import xla_call
from jax_convbatch._primitives.bias import bias_grad, broadcast_bias


def check(problem, engine, dtype, out_dtype=None, seed=0, **options):
    """Compares y, dx and dw with the oracle's, each to within its own bound."""
    x = normal(seed, problem.x, dtype)
    w = normal(seed + 1, problem.w, dtype)
    dy = normal(seed + 2, problem.y, out_dtype or dtype)
    results = run(
        problem,
        x,
        w,
        dy,
        algorithm=engine,
        # TF32, which "default" means on CUDA, rounds the operands too.
        precision="highest",
        preferred_element_type=out_dtype,
        **options,
    )
    right = exact(problem, x, w, dy)
    magnitude = exact(problem, *(abs(oracle.float64(a)) for a in (x, w, dy)))
    dtypes = (out_dtype or dtype, dtype, dtype)
    summing = oracle.accumulator(out_dtype or dtype)
    for got, want, size, count, result_dtype in zip(
        results, right, magnitude, terms(problem), dtypes, strict=True
    ):
        assert got.dtype == result_dtype
        oracle.assert_within_bound(got, want, size, count, summing)


@pytest.mark.parametrize("dtype", FLOATS)
@given(problem=problems(), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_results_are_the_exact_ones_but_for_rounding(engine, x64, dtype, problem, seed):
    check(problem, engine, dtype, seed=seed)


WIDER = [
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("bfloat16", "float64"),
    ("float32", "float64"),
]


@pytest.mark.parametrize(("dtype", "out_dtype"), WIDER)
@given(problem=problems())
@settings(max_examples=12)
def test_a_wider_result_is_accumulated_in_its_own_dtype(
    engine, x64, dtype, out_dtype, problem
):
    check(problem, engine, dtype, out_dtype)


@given(problem=problems(empty=False), limit=st.integers(0, 3))
@settings(max_examples=20)
def test_slices_of_the_batch_are_within_the_same_bound(engine, problem, limit):
    samples = problem._replace(x=(5, *problem.x[1:]))
    # Enough for 1 to 4 samples at a time, whatever the operation.
    check(samples, engine, "float32", workspace_limit=(limit + 1) * enough(problem))


def enough(problem):
    """Bytes that one sample certainly needs, whatever the operation."""
    one = problem._replace(x=(1, *problem.x[1:]))
    columns = np.prod(one.y[:-1]) * np.prod(one.w[:-2]) * one.x[-1]
    return int(4 * (columns + 2 * np.prod(one.w))) + 1024


LAYERS = {
    "3x3": ((4, 14, 14, 32), (3, 3, 32, 48), 1, "SAME", 1),
    "7x7 stride 2": ((2, 30, 30, 3), (7, 7, 3, 16), 2, "SAME", 1),
    "1x1": ((4, 14, 14, 64), (1, 1, 64, 96), 1, "VALID", 1),
    "1x1 stride 2": ((4, 14, 14, 64), (1, 1, 64, 96), 2, "VALID", 1),
    "patches": ((2, 32, 32, 3), (8, 8, 3, 64), 8, "VALID", 1),
    "depthwise": ((2, 20, 20, 96), (3, 3, 1, 96), 1, "SAME", 96),
    "grouped": ((2, 20, 20, 64), (3, 3, 16, 32), 1, "SAME", 4),
    "pointwise grouped": ((2, 12, 12, 64), (1, 1, 16, 32), 1, "SAME", 4),
    "wide": ((1, 2, 300, 16), (1, 5, 16, 130), 1, "SAME", 1),
    "3-D": ((2, 6, 10, 10, 12), (3, 3, 3, 12, 20), (1, 2, 2), "SAME", 1),
    "1-D": ((8, 200, 16), (9, 16, 24), 3, "SAME", 1),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_ordinary_size(engine, layer, dtype):
    x, w, stride, padding, groups = LAYERS[layer]
    rank = len(x) - 2
    strides = (stride,) * rank if isinstance(stride, int) else stride
    pads = jax.lax.padtype_to_pads(x[1:-1], w[:-2], strides, padding)
    conv = oracle.Conv(strides, tuple(pads), (1,) * rank, (1,) * rank, groups)
    spatial = "DHW"[3 - rank :]
    specs = f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
    check(Problem(x, w, conv, specs), engine, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    seed=st.integers(0, 9),
)
@settings(max_examples=20)
def test_the_bias_gradient_is_a_sum(platform, x64, dtype, shape, axis, seed):
    axis %= len(shape)
    dy = normal(seed, shape, dtype)
    check_bias_grad(dy, axis)


def check_bias_grad(dy, axis):
    moved = np.moveaxis(oracle.float64(dy), axis, -1)
    rows = int(np.prod(moved.shape[:-1]))
    db = bias_grad(jnp.asarray(dy), axis)
    assert db.dtype == dy.dtype
    oracle.assert_within_bound(db, oracle.bgrad(moved), oracle.bgrad(abs(moved)), rows)


# Few channels and many rows, many channels and few rows; whole chunks and not.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(70_001, 1), (16_384, 3), (300, 257), (3, 5000), (2, 33, 33, 64)]
)
def test_the_bias_gradient_of_many_rows(platform, shape, dtype):
    check_bias_grad(normal(0, shape, dtype), -1)


# Each thread block of a large GPU takes several turns; the last are not whole, nor is
# the last of the rows that are read as one.
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((813_001, 8), "bfloat16"),
        ((3301, 4095), "bfloat16"),
        ((100_003, 24), "float16"),
        ((53_000, 64), "float32"),
        ((3301, 1023), "float64"),
    ],
)
def test_the_bias_gradient_counts_every_row_once(platform, x64, shape, dtype):
    dy = whole(0, shape, dtype)
    want = dy.astype("int64").sum(0)
    db = bias_grad(jnp.asarray(dy), -1)
    np.testing.assert_array_equal(db, want.astype("float32").astype(dy.dtype))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_bias_is_added_to_its_channels(platform, axis):
    shape = (4, 4, 4)
    bias = normal(0, (4,), "float32")
    repeated = broadcast_bias(jnp.asarray(bias), shape, axis)
    want = np.moveaxis(np.broadcast_to(bias, shape), -1, axis)
    np.testing.assert_array_equal(repeated, want)


@given(problem=problems(empty=False))
@settings(max_examples=20)
def test_batch_groups_are_jax_laxs(engine, problem):
    """jax.lax defines them; whole numbers and no negative padding make it safe."""
    count = problem.conv.groups
    conv = problem.conv._replace(
        groups=1, padding=tuple((max(a, 0), max(b, 0)) for a, b in problem.conv.padding)
    )
    problem = problem._replace(
        x=(problem.x[0] * count, *problem.x[1:-1], problem.w[-2]), conv=conv
    )
    x = problem.user("x", jnp.round(3 * normal(0, problem.x, "float32")))
    w = problem.user("w", jnp.round(3 * normal(1, problem.w, "float32")))
    kwargs = problem.kwargs | {"batch_group_count": count}
    got, want = (
        jax.jit(lambda x, w, fun=fun: jax.vjp(fun, x, w)[1](fun(x, w)))(x, w)
        for fun in (
            lambda x, w: jc.conv_general_dilated(x, w, **kwargs, algorithm=engine),
            lambda x, w: jax.lax.conv_general_dilated(x, w, **kwargs),
        )
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_takes_the_place_of_jax_laxs(monkeypatch):
    """Libraries that call `jax.lax` by name are given ours there."""
    x, w = normal(0, (2, 5, 5, 3), "float32"), normal(1, (3, 3, 3, 4), "float32")
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(w, x):
        conv = jax.lax.conv_general_dilated
        return (conv(x, w, (1, 1), "SAME", dimension_numbers=numbers) ** 2).sum()

    want = jax.grad(loss)(w, x)
    whole_numbers = x.astype("int8"), w.astype("int8"), (1, 1), "SAME"
    in_stock = jax.lax.conv_general_dilated(*whole_numbers, dimension_numbers=numbers)
    calls = []

    def ours(*args, **kwargs):
        calls.append(args)
        return jc.conv_general_dilated(*args, **kwargs)

    monkeypatch.setattr(jax.lax, "conv_general_dilated", ours)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(w, x), want, rtol=1e-4)
    assert jc.explain(loss, w, x)[0].engine != "xla"
    params = jax.make_jaxpr(jc.conv)(x, w).eqns[0].params["params"]
    in_xla = functools.partial(xla_call, "fprop", params=params, out_dtype=x.dtype)
    (eqn,) = jax.make_jaxpr(in_xla)(x, w).eqns
    assert eqn.primitive is jax.lax.conv_general_dilated_p
    got = jax.lax.conv_general_dilated(*whole_numbers, dimension_numbers=numbers)
    np.testing.assert_array_equal(got, in_stock)
    assert len(calls) == 3  # and none from within


def test_a_call_of_known_sizes_is_not_worked_out_again(monkeypatch):
    """Eager calls cost little more than their dispatch."""
    x, w = np.ones((1, 5, 7, 3), "float32"), np.ones((3, 3, 3, 5), "float32")
    first = jc.conv(x, w, strides=[2, 1])

    def never(*_, **__):
        raise AssertionError("worked out again")

    monkeypatch.setattr(canonical.geo, "from_lax", never)
    np.testing.assert_array_equal(jc.conv(x, w, strides=[2, 1]), first)
    canonical._native.cache_clear()
    with pytest.raises(AssertionError, match="again"):
        jc.conv(x, w, strides=[2, 1])


def test_a_call_that_is_known_asks_again_whether_there_is_float64():
    x, w = np.ones((1, 4, 4, 2), "float32"), np.ones((3, 3, 2, 2), "float32")
    for wanted in ("float32", "float64", "float32"):
        with jax.enable_x64(wanted == "float64"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that float32 is all there is
            y = jc.conv(x, w, preferred_element_type="float64")
        assert y.dtype == wanted
