# SPDX-License-Identifier: Apache-2.0
"""Whole numbers leave nothing to round: every engine, slice and layout agrees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOATS, Problem, exact, problems, run, whole

import jax_convbatch as jc


def operands(problem, dtype):
    return [
        # -1, 0 and 1: even bfloat16 holds the sums of the largest problem.
        whole(i, shape, dtype, most=1)
        for i, shape in enumerate((problem.x, problem.w, problem.y))
    ]


def assert_exact(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(oracle.float64(a), b)


@pytest.mark.parametrize("dtype", FLOATS)
@given(problem=problems())
@settings(max_examples=25)
def test_every_engine_is_exact(engine, x64, dtype, problem):
    arrays = operands(problem, dtype)
    assert max(abs(a).max(initial=0) for a in exact(problem, *arrays)) <= 256
    got = run(problem, *arrays, algorithm=engine)
    assert_exact(got, exact(problem, *arrays))


def workspace(problem, engine, samples):
    """Bytes that the largest of the three operations plans for these samples."""
    part = problem._replace(x=(samples, *problem.x[1:]))
    arrays = operands(part, "float32")

    def all_three(x, w, dy):
        kwargs = {**part.kwargs, "algorithm": engine}
        y, pullback = jax.vjp(
            lambda x, w: jc.conv_general_dilated(x, w, **kwargs), x, w
        )
        return y, pullback(dy)

    user = [part.user(r, a) for r, a in zip("xwy", arrays, strict=True)]
    return max(row.workspace_bytes for row in jc.explain(all_three, *user))


@given(problem=problems(empty=False), budget=st.floats(0, 1))
@settings(max_examples=25)
def test_every_slice_of_the_batch_is_exact(engine, problem, budget):
    """Limits from what one sample needs to what the whole batch takes."""
    problem = problem._replace(x=(7, *problem.x[1:]))
    arrays = operands(problem, "float32")
    least, most = (workspace(problem, engine, samples) for samples in (1, 7))
    limit = int(least + budget * (most - least))
    got = run(problem, *arrays, algorithm=engine, workspace_limit=limit)
    assert_exact(got, exact(problem, *arrays))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels, groups", [(24, 1), (24, 4), (640, 1)])
def test_columns_in_many_pieces_are_exact(engine, dtype, channels, groups):
    """Samples enough for several ranges of pieces on each of up to 16 threads."""
    x = whole(0, (130, 13, 9, 24), dtype, most=1)
    w = whole(1, (3, 2, 24 // groups, channels), dtype, most=1)

    def conv(algorithm):
        return jc.conv(x, w, groups=groups, strides=(2, 1), algorithm=algorithm)

    np.testing.assert_array_equal(
        oracle.float64(conv(engine)), oracle.float64(conv("per_sample"))
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("c", "k", "groups"),
    [(24, 40, 1), (48, 64, 2), (3, 64, 1), (12, 12, 3), (16, 16, 16)],
)
def test_wgrad_of_many_pixels_is_exact(engine, dtype, c, k, groups):
    """Enough of them that a sum is cut into parts, which are added at the end."""
    x = whole(0, (9, 32, 28, c), dtype, most=1)
    w = np.zeros((3, 3, c // groups, k), dtype)
    dy = whole(1, (9, 32, 28, k), dtype, most=1)

    def conv(w):
        return jc.conv(x, w, groups=groups, algorithm=engine)

    (dw,) = jax.vjp(conv, w)[1](dy)
    same = oracle.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), groups)
    want = oracle.wgrad(oracle.float64(x), oracle.float64(dy), same, (3, 3))
    np.testing.assert_array_equal(dw, want.astype(dw.dtype))


# Edges of an image, and taps that are apart, in both axes; channels for kernels of few
# of them and of many.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("c", "k"), [(3, 5), (24, 40)])
@pytest.mark.parametrize(
    ("strides", "dilation", "padding"),
    [
        ((1, 1), (1, 2), ((1, 2), (2, 3))),
        ((2, 1), (2, 1), ((0, 3), (1, 4))),
        ((1, 2), (1, 1), ((2, 0), (4, 1))),
    ],
)
def test_edges_and_dilated_taps_are_exact(
    engine, dtype, c, k, strides, dilation, padding
):
    conv = oracle.Conv(strides, padding, (1, 1), dilation, 1)
    problem = Problem((2, 7, 9, c), (3, 3, c, k), conv, ("NHWC", "HWIO", "NHWC"))
    arrays = operands(problem, dtype)
    assert_exact(run(problem, *arrays, algorithm=engine), exact(problem, *arrays))


def test_a_step_over_pixels_is_no_matrix_product(engine):
    """One tap, and with padding at the end as many outputs as inputs."""
    x, w = whole(0, (2, 4, 3), "float32"), whole(1, (1, 3, 5), "float32")
    got = jc.conv(x, w, strides=2, padding=((0, 3),), algorithm=engine)
    want = np.concatenate([x[:, ::2] @ w[0], np.zeros((2, 2, 5))], 1)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("pixels", "strides"),
    [((131, 132), (2, 2)), ((5, 40), (1, 3)), ((24, 13), (3, 1)), ((9, 25), (2, 2))],
)
def test_strided_filters_of_one_tap_are_exact(engine, dtype, groups, pixels, strides):
    """The products are on every so many pixels of x; the largest dx is 8.8 MB."""
    x = whole(0, (2, *pixels, 64), dtype, most=1)
    w = whole(1, (1, 1, 64 // groups, 48), dtype, most=1)

    def conv(x):
        return jc.conv(x, w, groups=groups, strides=strides, algorithm=engine)

    y, pullback = jax.vjp(conv, x)
    dy = whole(2, y.shape, dtype, most=1)
    read = (slice(None), slice(None, None, strides[0]), slice(None, None, strides[1]))
    a, b, c = (
        oracle.float64(part).reshape(*part.shape[:-1], groups, -1)
        for part in (x[read], w[0, 0], dy)
    )
    np.testing.assert_array_equal(
        oracle.float64(y), np.einsum("nhwgc,cgk->nhwgk", a, b).reshape(y.shape)
    )
    dx = np.zeros(x.shape)
    dx[read] = np.einsum("nhwgk,cgk->nhwgc", c, b).reshape(dx[read].shape)
    np.testing.assert_array_equal(oracle.float64(pullback(dy)[0]), dx)


@given(problem=problems(ranks=(0, 1, 2)), axis=st.integers(0, 2))
@settings(max_examples=25)
def test_a_spatial_axis_of_one_changes_nothing(engine, problem, axis):
    """1-D is 2-D with a size of 1, and 2-D is 3-D with one."""
    arrays = operands(problem, "float32")
    axis %= problem.conv.rank + 1
    trivial = (1, (0, 0), 1, 1)
    conv = problem.conv._replace(
        **{
            field: (*old[:axis], new, *old[axis:])
            for field, old, new in zip(
                problem.conv._fields, problem.conv[:-1], trivial, strict=False
            )
        }
    )
    spatial = "DHW"[3 - conv.rank :]
    lifted = problem._replace(
        x=(*problem.x[: 1 + axis], 1, *problem.x[1 + axis :]),
        w=(*problem.w[:axis], 1, *problem.w[axis:]),
        conv=conv,
        specs=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
    )
    x, w, dy = arrays
    places = (1 + axis, axis, 1 + axis)
    higher = run(
        lifted,
        *(np.expand_dims(a, i) for a, i in zip(arrays, places, strict=True)),
        algorithm=engine,
    )
    lower = run(problem, x, w, dy, algorithm=engine)
    for a, b, place in zip(higher, lower, (1 + axis, 1 + axis, axis), strict=True):
        np.testing.assert_array_equal(a.squeeze(place), b)


def test_a_filter_without_spatial_axes_is_a_matrix_product(engine):
    x, w = whole(0, (5, 7), "float32"), whole(1, (7, 3), "float32")
    np.testing.assert_array_equal(jc.conv(x, w, algorithm=engine), x @ w)


# --- the convenient functions are conv_general_dilated ------------------------

CONVS = {
    "one number for all axes": (
        dict(strides=2, dilation=2, padding=1),
        dict(window_strides=(2, 2), rhs_dilation=(2, 2), padding=((1, 1), (1, 1))),
    ),
    "one number an axis": (
        dict(strides=(2, 1), input_dilation=(1, 3), padding=(2, 0)),
        dict(window_strides=(2, 1), lhs_dilation=(1, 3), padding=((2, 2), (0, 0))),
    ),
    "pairs": (
        dict(padding=((-1, 2), 0), dilation=(1, 2)),
        dict(window_strides=(1, 1), padding=((-1, 2), (0, 0)), rhs_dilation=(1, 2)),
    ),
    "same": (
        dict(strides=(2, 3)),
        dict(window_strides=(2, 3), padding="SAME"),
    ),
    "same, lower": (
        dict(strides=2, padding="SAME_LOWER"),
        dict(window_strides=(2, 2), padding="SAME_LOWER"),
    ),
    "valid": (dict(padding="VALID"), dict(window_strides=(1, 1), padding="VALID")),
}


@pytest.mark.parametrize("function", [jc.conv, jc.conv_bias_act])
@pytest.mark.parametrize("call", CONVS)
def test_conv_is_conv_general_dilated(engine, function, call):
    x, w = whole(0, (2, 9, 8, 4), "float32"), whole(1, (3, 3, 4, 6), "float32")
    bias = whole(2, (6,), "float32")
    short, long = CONVS[call]
    want = jc.conv_general_dilated(
        x, w, **long, dimension_numbers=("NHWC", "HWIO", "NHWC"), algorithm=engine
    )
    np.testing.assert_array_equal(function(x, w, algorithm=engine, **short), want)
    got = function(x, w, bias, algorithm=engine, **short)
    np.testing.assert_array_equal(got, want + bias)


def test_conv_takes_groups_and_dimension_numbers(engine):
    x, w = whole(0, (2, 4, 9, 8), "float32"), whole(1, (6, 2, 3, 3), "float32")
    bias, numbers = whole(2, (6,), "float32"), ("NCHW", "OIHW", "NCHW")
    got = jc.conv(x, w, bias, groups=2, dimension_numbers=numbers, algorithm=engine)
    want = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2)
    np.testing.assert_array_equal(got, want + bias[:, None, None])


TRANSPOSED = {
    "same": {},
    "valid": {"padding": "VALID"},
    "stride one": {"strides": 1},
    "pairs": {"padding": ((2, 1), (0, 3))},
    "dilated": {"dilation": (2, 1), "padding": "VALID"},
    "a gradient": {"transpose_kernel": True},
    "a gradient, valid": {"transpose_kernel": True, "padding": "VALID"},
    "consistent": {"padding": ((1, 1), (0, 1)), "use_consistent_padding": True},
}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("call", TRANSPOSED)
def test_conv_transpose_is_jax_laxs(engine, call, rank):
    kwargs = {"strides": 2, "padding": "SAME"} | TRANSPOSED[call]
    strides = (kwargs["strides"],) * rank
    for name in ("padding", "dilation"):
        value = kwargs.get(name)
        if isinstance(value, tuple):
            kwargs[name] = (*value, value[0])[:rank]
    kwargs["strides"] = strides
    x = whole(0, (2, *(5, 4, 3)[:rank], 4), "float32")
    w = whole(1, (*(3, 2, 3)[:rank], 4, 6), "float32")
    bias = whole(2, (6,), "float32")
    if kwargs.get("transpose_kernel"):
        w = w.swapaxes(-1, -2)
    lax_kwargs = {
        "rhs_dilation" if k == "dilation" else k: v for k, v in kwargs.items()
    }
    # Computed here from its own definition: x with holes, then an ordinary
    # convolution, both by the oracle.
    want = reference_transpose(x, w, **lax_kwargs)
    ours = functools.partial(jc.conv_transpose, algorithm=engine, **kwargs)
    np.testing.assert_array_equal(ours(x, w), want)
    np.testing.assert_array_equal(ours(x, w, bias), want + bias)


def reference_transpose(x, w, **kwargs):
    jaxpr = jax.make_jaxpr(functools.partial(jax.lax.conv_transpose, **kwargs))(x, w)
    (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated")
    if kwargs.get("transpose_kernel"):
        w = np.flip(w, range(w.ndim - 2)).swapaxes(-1, -2)
    conv = oracle.Conv(
        eqn.params["window_strides"],
        eqn.params["padding"],
        eqn.params["lhs_dilation"],
        eqn.params["rhs_dilation"],
    )
    return oracle.fprop(oracle.float64(x), oracle.float64(w), conv)


def test_conv_transpose_with_a_transposed_kernel_is_a_gradient(engine):
    x, w = whole(0, (2, 9, 8, 4), "float32"), whole(1, (3, 3, 4, 6), "float32")
    conv = functools.partial(jc.conv, w=w, strides=(2, 2), algorithm=engine)
    y, pullback = jax.vjp(lambda x: conv(x), jnp.asarray(x[:, :8]))
    got = jc.conv_transpose(y, w, strides=2, transpose_kernel=True, algorithm=engine)
    np.testing.assert_array_equal(got, pullback(y)[0])


@pytest.mark.parametrize("channels", [256, 250])
def test_large_gradients_are_zero_where_nothing_is_read(engine, channels):
    """On the CPU they bypass the caches: copies, zeros, and rows of odd length."""
    w = whole(0, (1, 1, channels, 16), "float32")
    dy = whole(1, (2, 50, 49, 16), "float32")
    x = jax.ShapeDtypeStruct((2, 99, 97, channels), "float32")
    assert x.size * 4 >= 16 << 20

    def conv(x):
        return jc.conv(x, w, strides=2, padding="VALID", algorithm=engine)

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def dgrad(memory, dy):
        return jax.linear_transpose(conv, x)(dy)[0]

    dx = dgrad(jnp.full(x.shape, jnp.nan), dy)
    want = np.zeros(x.shape, "float32")
    want[:, ::2, ::2] = np.asarray(dy) @ np.asarray(w[0, 0]).T
    np.testing.assert_array_equal(dx, want)
