# SPDX-License-Identifier: Apache-2.0
"""The fused layer: values and gradients against float64, what it keeps and runs."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.experimental import jet
from problems import normal, whole
from test_autodiff import residuals

import jax_convbatch as jc
from jax_convbatch._layers import activations
from jax_convbatch._layers.act_grad import cotangent
from jax_convbatch._primitives.bias import bias_grad, bias_grad_chunk

NAMES = (None, *activations.ACTIVATIONS)
OPERANDS = ("bias", "scale", "residual")
CHOICES = [frozenset(c) for n in range(4) for c in itertools.combinations(OPERANDS, n)]
GEOMETRY = oracle.Conv((2, 1), ((1, 2), (0, 1)), (1, 1), (1, 2))
SHAPES = {"x": (3, 9, 8, 16), "w": (3, 2, 16, 24)}
KWARGS = dict(strides=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2))
EPSILON = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}


def operands(dtype, present, seed=0):
    """x, w, then those present, by name; of size 1, y about as large."""
    y = (3, *GEOMETRY.outputs(SHAPES["x"][1:-1], SHAPES["w"][:2]), 24)
    shapes = SHAPES | {"bias": (24,), "scale": (24,), "residual": y}
    names = ("x", "w", *(n for n in OPERANDS if n in present))
    arrays = {n: normal(seed + i, shapes[n]) for i, n in enumerate(names)}
    arrays["w"] = arrays["w"] / 10
    return {n: jnp.asarray(a, dtype) for n, a in arrays.items()}, y


def layer(activation, arrays, **options):
    x, w = arrays["x"], arrays["w"]
    rest = {n: a for n, a in arrays.items() if n in OPERANDS}
    return jc.conv_bias_act(x, w, activation=activation, **rest, **KWARGS, **options)


def exact_layer(activation, arrays):
    """The same in float64 by jax.numpy, convolution included."""
    a = {n: v.astype("float64") for n, v in arrays.items()}
    dims = jax.lax.conv_dimension_numbers(
        a["x"].shape, a["w"].shape, ("NHWC", "HWIO", "NHWC")
    )
    c = jax.lax.conv_general_dilated(
        *(a["x"], a["w"], (2, 1), KWARGS["padding"]),
        rhs_dilation=(1, 2),
        dimension_numbers=dims,
    )
    z = c * a.get("scale", 1.0) + a.get("bias", 0.0) + a.get("residual", 0.0)
    chosen = activations.lookup(activation)
    return chosen.fn(z) if chosen else z, z


def away_from_kinks(activation, z, margin, dy):
    """dy, zero where rounding may move z across a kink of the activation."""
    kinks = {"relu": [0], "relu6": [0, 6], "leaky_relu": [0], "elu": [0]}
    for kink in kinks.get(activation, []):
        dy = np.where(np.abs(np.asarray(z) - kink) < margin, 0, dy)
    return dy


@pytest.fixture(params=["float64", "float32", "float16", "bfloat16"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("activation", NAMES)
def test_values_and_gradients_are_those_of_float64(x64, engine, activation, dtype):
    choices = CHOICES if dtype == "float32" else CHOICES[-1:]
    assert_values_and_gradients(engine, activation, dtype, choices)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("activation", NAMES)
def test_a_tiles_epilogue_is_that_of_float64(x64, hopper, activation, dtype):
    for present in CHOICES:
        arrays, _ = operands(dtype, present)
        (row,) = jc.explain(functools.partial(layer, activation), arrays)
        place = "in the same kernel" in row.reason
        assert row.engine == "implicit_gemm" and place == bool(present or activation)
    assert_values_and_gradients("implicit_gemm", activation, dtype, CHOICES)


def assert_values_and_gradients(engine, activation, dtype, choices):
    eps = EPSILON[dtype]
    if jax.default_backend() != "cpu" and dtype == "float32":
        eps = 2**-10  # TF32
    sets = [operands(dtype, present)[0] for present in choices]
    wanted, dys = [], []
    for arrays in sets:
        want, z = exact_layer(activation, arrays)
        dy = away_from_kinks(activation, z, 64 * eps, normal(9, want.shape))
        wanted.append(want)
        dys.append(jnp.asarray(dy, dtype))

    @jax.jit
    def run(sets, dys):
        fun = functools.partial(layer, activation, algorithm=engine)
        pairs = [jax.vjp(fun, arrays) for arrays in sets]
        return [(y, pull(dy)[0]) for (y, pull), dy in zip(pairs, dys, strict=True)]

    for (y, got), want, arrays, dy in zip(
        run(sets, dys), wanted, sets, dys, strict=True
    ):
        assert y.dtype == dtype
        np.testing.assert_allclose(
            oracle.float64(y), want, rtol=64 * eps, atol=64 * eps
        )
        as64 = {n: jnp.asarray(oracle.float64(a)) for n, a in arrays.items()}
        _, pull64 = jax.vjp(lambda a: exact_layer(activation, a)[0], as64)
        for name, expected in pull64(jnp.asarray(oracle.float64(dy)))[0].items():
            error = np.abs(oracle.float64(got[name]) - np.asarray(expected))
            bound = 256 * eps * np.sqrt(np.mean(np.asarray(expected) ** 2) + 1)
            assert error.max() < bound, (name, sorted(arrays), error.max(), bound)


@pytest.mark.parametrize("activation", NAMES)
def test_forward_mode_agrees_with_reverse_mode(x64, platform, activation):
    arrays, y_shape = operands("float64", OPERANDS)
    tangents, _ = operands("float64", OPERANDS, seed=20)
    dy = jnp.asarray(normal(9, y_shape))
    y, dy_forward = jax.jvp(
        functools.partial(layer, activation), (arrays,), (tangents,)
    )
    y_again, pullback = jax.vjp(functools.partial(layer, activation), arrays)
    np.testing.assert_array_equal(y, y_again)
    (gradients,) = pullback(dy)
    forward = float((dy_forward * dy).sum())
    reverse = sum(float((gradients[n] * tangents[n]).sum()) for n in arrays)
    np.testing.assert_allclose(forward, reverse, rtol=1e-11)


# Not relu and relu6: jax.experimental.jet fails on jax.nn's own.
@pytest.mark.parametrize("activation", [None, "leaky_relu", "tanh", "silu"])
def test_taylor_mode_agrees_with_nested_forward_mode(x64, platform, activation):
    arrays, _ = operands("float64", OPERANDS)
    direction, _ = operands("float64", OPERANDS, seed=20)

    def along(t):
        moved = {n: a + t * direction[n] for n, a in arrays.items()}
        return layer(activation, moved)

    _, terms = jet.jet(along, (0.0,), ((1.0, 0.0),))
    first = jax.jacfwd(along)
    np.testing.assert_allclose(terms[0], first(0.0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(terms[1], jax.jacfwd(first)(0.0), rtol=1e-9, atol=1e-9)


# Few channels, which the CPU multiplies several places at a time: all in one block,
# a class of places that are apart, more channels out in each group, many out, and
# more than scale and bias are applied to at a time.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 5, 70, 2), (3, 3, 2, 3), {}),
        ((2, 5, 9, 1), (3, 3, 1, 2), dict(input_dilation=(1, 2), padding=1)),
        ((2, 5, 9, 6), (3, 3, 1, 18), dict(groups=6)),
        ((2, 3, 2100, 1), (1, 3, 1, 1), {}),
        ((2, 3, 2100, 2), (1, 3, 2, 3), {}),
        ((2, 5, 9, 1), (3, 3, 1, 40), dict(strides=2)),
        ((2, 2, 5, 3), (1, 3, 3, 3000), {}),
        ((2, 2, 5, 3), (1, 3, 3, 3000), dict(algorithm="im2col_gemm")),
    ],
)
def test_few_channels_are_exact(platform, dtype, x, w, options):
    x, w = whole(0, x, dtype, 2), whole(1, w, dtype, 1)
    K = w.shape[-1]
    y = jax.eval_shape(functools.partial(jc.conv, **options), x, w).shape
    bias, scale, residual = (
        whole(2, s, dtype, 2).astype(dtype) for s in ((K,), (K,), y)
    )

    def fun(x, w, residual):
        rest = dict(bias=bias, scale=scale, activation="relu", **options)
        return jc.conv_bias_act(x, w, residual=residual, **rest)

    got, pullback = jax.vjp(fun, x, w, residual)
    c = jc.conv(x, w, **options | dict(algorithm="im2col_gemm"))
    z = np.float32(c) * np.float32(scale) + np.float32(bias) + np.float32(residual)
    assert np.abs(z).max() <= 256, "beyond that bf16 rounds"
    np.testing.assert_array_equal(np.float32(got), np.maximum(z, 0))
    passed = pullback(jnp.ones_like(got))[2]
    np.testing.assert_array_equal(np.float32(passed), z > 0)


@pytest.mark.parametrize("activation", NAMES)
def test_the_same_bits_on_every_run(platform, activation):
    arrays, y_shape = operands("float32", OPERANDS)
    dy = jnp.asarray(normal(9, y_shape), "float32")

    @jax.jit
    def step(arrays, dy):
        y, pullback = jax.vjp(functools.partial(layer, activation), arrays)
        return y, pullback(dy)

    first = step(arrays, dy)
    for _ in range(3):
        jax.tree.map(np.testing.assert_array_equal, step(arrays, dy), first)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_a_samples_bits_do_not_depend_on_the_batch(platform, activation):
    arrays, _ = operands("float32", OPERANDS)

    def both(x, residual):
        def fun(x):
            return layer(activation, arrays | {"x": x, "residual": residual})

        y, pullback = jax.vjp(fun, x)
        return y, pullback(jnp.ones_like(y))[0]

    whole_batch = jax.jit(both)(arrays["x"], arrays["residual"])
    for n in range(3):
        one = jax.jit(both)(arrays["x"][n : n + 1], arrays["residual"][n : n + 1])
        for got, want in zip(one, whole_batch, strict=True):
            np.testing.assert_array_equal(got[0], want[n])


# --- the one pass over dy ----------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 8, 33, 250, 4095, 4096])
@pytest.mark.parametrize("rows", [5, 700])
def test_dz_and_db_of_any_number_of_channels(platform, dtype, rows, channels, x64):
    y, dy = (jnp.asarray(whole(i, (rows, channels)), dtype) for i in (0, 1))
    dz, db = jax.jit(lambda y, dy: cotangent("relu", y, dy, 1, bias=True))(y, dy)
    want = np.where(oracle.float64(y) > 0, oracle.float64(dy), 0)
    np.testing.assert_array_equal(oracle.float64(dz), want)
    exact = jnp.asarray(want.sum(0), "float32" if dtype != "float64" else dtype)
    np.testing.assert_array_equal(db, exact.astype(dtype))
    (alone,) = cotangent("relu", y, dy, 1, bias=False)
    np.testing.assert_array_equal(alone, dz)
    np.testing.assert_array_equal(jax.jit(lambda a: bias_grad(a, 1))(dz), db)


@pytest.mark.parametrize("channels", [4, 5, 8])
def test_per_example_bias_gradients(platform, channels):
    y, dy = (jnp.asarray(whole(i, (3, 77, channels)), "bfloat16") for i in (0, 1))
    one = functools.partial(cotangent, "relu", channel_axis=1, bias=True)
    dz, db = jax.jit(jax.vmap(one))(y, dy)
    want = np.where(oracle.float64(y) > 0, oracle.float64(dy), 0)
    np.testing.assert_array_equal(oracle.float64(dz), want)
    np.testing.assert_array_equal(oracle.float64(db), want.sum(1))


def test_a_bias_gradient_over_more_rows_than_f32_counts(platform):
    """Adding ones in turn stops at 2^24 in f32.

    What holds here: |error| <= d eps sum|dz|, where d bounds the longest chain of
    additions, the rows of a chunk and then the chunks.
    """
    rows = 2**24 + 2**20
    chunk = bias_grad_chunk(rows, 1, 4, platform)
    chain = chunk + 8 * -(-rows // chunk)
    assert chain < 2**16
    total = jax.jit(lambda a: bias_grad(a, 1))
    one_pass = jax.jit(lambda a: cotangent("relu", a, a, 1, bias=True)[1])
    dy = jnp.ones((rows, 1), "float32")
    assert total(dy) == rows and one_pass(dy) == rows
    rng = np.random.default_rng(0)
    numbers = rng.integers(-2, 3, (rows, 1)).astype(np.float32)
    assert total(numbers) == int(numbers.astype(np.int64).sum())
    numbers = rng.random((rows, 1), np.float32)
    exact = numbers.sum(dtype=np.float64)
    assert abs(float(total(numbers)[0]) - exact) < chain * 2.0**-24 * exact
    assert abs(float(one_pass(numbers)[0]) - exact) < chain * 2.0**-24 * exact


def test_inf_and_nan_stay_where_they_are(platform):
    z = jnp.asarray([[-1.0, 1.0, jnp.nan, -jnp.inf]])
    dy = jnp.asarray([[jnp.inf, jnp.nan, 1.0, 1.0]])
    dz, _ = cotangent("relu", jax.nn.relu(z), dy, 1, bias=True)
    np.testing.assert_array_equal(dz, [[0.0, np.nan, 0.0, 0.0]])


# --- what is kept and what is run ---------------------------------------------------


def jaxpr_of_gradient(activation, present, dtype="float32"):
    arrays, _ = operands(dtype, present)

    def loss(arrays):
        return layer(activation, arrays).sum()

    return jax.make_jaxpr(jax.grad(loss))(arrays)


@pytest.mark.parametrize("activation", NAMES)
def test_the_backward_pass_is_two_convolutions_and_one_kernel(activation):
    jaxpr = jaxpr_of_gradient(activation, {"bias", "residual"})
    names = [str(eqn.primitive) for eqn in jaxpr.eqns]
    passes = {"conv_bgrad"} if activation is None else {"conv_act_cotangent"}
    convolutions = ["conv_dgrad", "conv_layer", "conv_wgrad"]
    mine = sorted(n for n in names if n.startswith("conv_"))
    assert mine == sorted([*convolutions, *passes])


def test_what_nobody_asks_for_is_not_computed():
    arrays, _ = operands("float32", {"bias"})

    def loss(w):
        return layer("relu", arrays | {"w": w}).sum()

    (eqn,) = (
        e
        for e in jax.make_jaxpr(jax.grad(loss))(arrays["w"]).eqns
        if str(e.primitive) == "conv_act_cotangent"
    )
    assert len(eqn.outvars) == 1 and not eqn.params["bias"]


def test_the_gradient_of_the_residual_is_dz_without_a_copy():
    jaxpr = jaxpr_of_gradient("relu", {"bias", "residual"})
    (eqn,) = (e for e in jaxpr.eqns if str(e.primitive) == "conv_act_cotangent")
    assert eqn.outvars[0] in jaxpr.jaxpr.outvars


# What XLA may do to arrays of y's size: nothing but hold them.
FULL_SIZE = re.compile(
    r"= \w+\[(\d[\d,]*)\]\S* (?!parameter|custom-call|get-tuple-element|bitcast|call|"
    r"tuple|while|conditional|constant|broadcast)([\w-]+)\("
)


@pytest.mark.parametrize("activation", NAMES)
def test_the_compiled_layer_has_no_pass_of_xlas_own(platform, activation):
    arrays, y_shape = operands("float32", {"bias", "residual", "scale"})
    dy = jnp.asarray(normal(9, y_shape), "float32")
    fixed = arrays.pop("scale")

    @jax.jit
    def step(arrays, dy):
        def fun(arrays):
            return layer(activation, arrays | {"scale": fixed})

        y, pullback = jax.vjp(fun, arrays)
        return y, pullback(dy)

    text = step.lower(arrays, dy).compile().as_text()
    assert "convolution(" not in text and " transpose(" not in text
    size = int(np.prod(y_shape))
    found = [
        operation
        for shape, operation in FULL_SIZE.findall(text)
        if np.prod([int(n) for n in shape.split(",")]) == size
        # The residual's gradient and dz are one array: XLA copies it once where
        # it must return it beside another use.
        and operation != "copy"
    ]
    assert not found, found


def test_a_python_function_is_applied_outside(platform):
    arrays, _ = operands("float32", {"bias"})
    got = layer(jax.nn.softplus, arrays)
    np.testing.assert_array_equal(got, jax.nn.softplus(layer(None, arrays)))


def test_checkpoint_keeps_nothing_of_the_layer(platform):
    arrays, _ = operands("float32", {"bias"})

    def loss(arrays):
        return jax.checkpoint(functools.partial(layer, "gelu"))(arrays).sum()

    assert not [line for line in residuals(loss, arrays) if "argument" not in line]
