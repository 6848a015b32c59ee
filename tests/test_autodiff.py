# SPDX-License-Identifier: Apache-2.0
"""Every mode and order of differentiation, against finite differences and itself."""

import contextlib
import functools
import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.test_util import check_grads
from problems import normal

import jax_convbatch as jc
from jax_convbatch._layers import activations
from jax_convbatch._primitives.bias import bias_grad, broadcast_bias

NHWC = ("NHWC", "HWIO", "NHWC")
SHAPES = (2, 5, 4, 4), (3, 2, 4, 6)
GROUPED = (2, 5, 4, 4), (3, 2, 2, 6)

# Every public function, as functions of x, w and, where they take one, a bias.
FUNCTIONS = {
    "conv_general_dilated": (
        lambda x, w: jc.conv_general_dilated(
            x, w, (2, 1), ((1, 2), (-1, 1)), (1, 2), (2, 1), NHWC
        ),
        SHAPES,
    ),
    "grouped": (
        lambda x, w: jc.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2
        ),
        GROUPED,
    ),
    "batch groups": (
        lambda x, w: jc.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=NHWC, batch_group_count=2
        ),
        SHAPES,
    ),
    "channels first": (
        lambda x, w: jc.conv_general_dilated(x, w, (1, 2), "SAME"),
        ((2, 4, 5, 4), (6, 4, 3, 2)),
    ),
    "no spatial axes": (jc.conv, ((3, 4), (4, 5))),
    "conv": (functools.partial(jc.conv, strides=(2, 1), dilation=2), (*SHAPES, (6,))),
    "conv_transpose": (
        functools.partial(jc.conv_transpose, strides=2),
        (*SHAPES, (6,)),
    ),
    "conv_transpose of a gradient": (
        functools.partial(jc.conv_transpose, strides=2, transpose_kernel=True),
        ((2, 3, 3, 6), (3, 2, 4, 6), (4,)),
    ),
}
for _name in (None, *activations.ACTIVATIONS):
    FUNCTIONS[f"conv_bias_act, {_name}"] = (
        functools.partial(jc.conv_bias_act, activation=_name, groups=2),
        (*GROUPED, (6,)),
    )
each_function = pytest.mark.parametrize("name", FUNCTIONS)

pytestmark = pytest.mark.usefixtures("x64")


def arguments(shapes, dtype="float64"):
    return [jnp.asarray(normal(i, s, dtype) / 2) for i, s in enumerate(shapes)]


def away_from_kinks(fun, args, kinks):
    """The bias moved so that no pre-activation is near a kink."""
    x, w, bias = args
    for seed in range(200):
        bias = jnp.asarray(normal(seed, bias.shape))
        z = fun(x, w, bias)
        if all(abs(z - kink).min() > 1e-3 for kink in kinks):
            return x, w, bias
    raise AssertionError("every bias puts a pre-activation on a kink")


KINKS = {"relu": [0], "relu6": [0, 6], "leaky_relu": [0], "elu": [0]}


@each_function
def test_gradients_of_both_modes_and_two_orders(platform, name):
    fun, shapes = FUNCTIONS[name]
    args = arguments(shapes)
    activation = name.removeprefix("conv_bias_act, ")
    if activation in KINKS:
        linear = functools.partial(jc.conv_bias_act, groups=2)
        args = away_from_kinks(linear, args, KINKS[activation])
        if activation == "relu6":
            # Some of each piece, so that all are checked.
            args = args[0] * 4, args[1], args[2]
            args = away_from_kinks(linear, args, KINKS[activation])
    check_grads(fun, args, order=2, modes=["fwd", "rev"], eps=1e-5)


KINK_SLOPES = [
    ("relu", 0, 0),
    ("relu6", 0, 0),
    ("relu6", 6, 0),
    ("leaky_relu", 0, 1),
    ("elu", 0, 1),
]


@pytest.mark.parametrize(("activation", "at", "slope"), KINK_SLOPES)
def test_the_derivative_at_a_kink_is_jaxs(platform, activation, at, slope):
    x, w = jnp.full((1, 1), float(at)), jnp.ones((1, 1))
    fun = functools.partial(jc.conv_bias_act, w=w, activation=activation)
    assert jax.grad(lambda x: fun(x).sum())(x) == slope
    assert jax.grad(getattr(jax.nn, activation))(float(at)) == slope


@pytest.mark.parametrize("activation", [None, "gelu", "tanh"])
def test_the_layers_hessian_and_third_derivative_are_those_of_its_parts(
    platform, activation
):
    x, w, bias = arguments(((1, 3, 2), (2, 2, 2), (2,)))
    chosen = activations.lookup(activation)

    def parts(x, w, bias):
        z = jc.conv(x, w)
        z = z + broadcast_bias(bias, z.shape, 2)
        return chosen.fn(z) if chosen else z

    def layer(x, w, bias):
        return jc.conv_bias_act(x, w, bias, activation=activation)

    def hessian(fun):
        loss = lambda *args: (fun(*args) ** 3).sum()  # noqa: E731
        return jax.hessian(loss, argnums=(0, 1, 2))(x, w, bias)

    def third(fun):
        f = lambda s: (fun(x * s, w, bias) ** 2).sum()  # noqa: E731
        return jax.grad(jax.grad(jax.grad(f)))(1.0)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)
    jax.tree.map(close, hessian(layer), hessian(parts))
    close(third(layer), third(parts))


@each_function
def test_jacobians_linearize_and_transpose_agree(platform, name):
    fun, shapes = FUNCTIONS[name]
    args = arguments(shapes)
    tangents = [normal(10 + i, a.shape) for i, a in enumerate(args)]
    y, want = jax.jvp(fun, args, tangents)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)

    y_linear, push = jax.linearize(fun, *args)
    close(y_linear, y)
    close(push(*tangents), want)
    cotangent = normal(20, y.shape)
    pulled = jax.vjp(fun, *args)[1](cotangent)
    products = [jnp.vdot(a, b) for a, b in zip(pulled, tangents, strict=True)]
    close(sum(products), jnp.vdot(cotangent, want))
    transposed = jax.linear_transpose(push, *args)(cotangent)
    jax.tree.map(close, transposed, pulled)


@pytest.mark.parametrize("name", ["conv_general_dilated", "grouped", "conv"])
def test_jacfwd_is_jacrev(platform, name):
    fun, shapes = FUNCTIONS[name]
    args = arguments(shapes)
    small = jax.jit(lambda *a: fun(*a)[0, 0])
    forward, reverse = (
        jax.jit(j(small, argnums=tuple(range(len(args)))))(*args)
        for j in (jax.jacfwd, jax.jacrev)
    )
    for a, b in zip(forward, reverse, strict=True):
        assert np.any(a)
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_each_derivative_runs_on_this_packages_kernels(platform):
    """Both orders, in f32; nothing of them goes to jax.lax."""
    fun, shapes = FUNCTIONS["conv"]
    args = arguments(shapes, "float32")

    def loss(*args):
        return (fun(*args) ** 3).sum()

    def second(*args):
        return jax.grad(lambda *a: jax.grad(loss)(*a).sum(), argnums=(0, 1, 2))(*args)

    rows = jc.explain(second, *args)
    assert {row.op for row in rows} == {"fprop", "dgrad", "wgrad", "bgrad"}
    assert "xla" not in {row.engine for row in rows}


def test_the_bias_and_its_gradient_are_each_others_transpose(platform):
    dy = normal(0, (3, 4, 5))
    spread = functools.partial(broadcast_bias, shape=dy.shape, channel_axis=1)
    total = functools.partial(bias_grad, kept=1)
    check_grads(total, (dy,), order=2, modes=["fwd", "rev"], eps=1e-5)
    check_grads(spread, (dy[0, :, 0],), order=2, modes=["fwd", "rev"], eps=1e-5)
    (back,) = jax.vjp(spread, dy[0, :, 0])[1](dy)
    np.testing.assert_allclose(back, dy.sum((0, 2)), rtol=1e-12)


# --- transformations of control flow -------------------------------------------


def stack(layer, x, w):
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0]


@pytest.mark.parametrize("remat", [False, True])
def test_scan_and_remat_change_no_gradient(platform, remat):
    x, w = arguments(((2, 5, 5, 3), (3, 3, 3, 3, 3)))
    layer = functools.partial(jc.conv_bias_act, activation="tanh")
    inner = jax.remat(layer) if remat else layer

    def unrolled(x, w):
        for one in w:
            x = layer(x, one)
        return x

    got, want = (
        jax.jit(jax.grad(lambda x, w, f=f: (f(x, w) ** 2).sum(), argnums=(0, 1)))(x, w)
        for f in (functools.partial(stack, inner), unrolled)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_forward_mode_through_a_while_loop(platform):
    x, w = arguments(((2, 5, 3), (3, 3, 3)))

    def loop(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: jc.conv(x, w), x)

    want = loop(normal(5, x.shape))  # the loop is linear
    got = jax.jvp(loop, (x,), (normal(5, x.shape),))[1]
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("predicate", [True, False])
def test_gradients_through_cond(platform, predicate):
    x, w = arguments(((2, 5, 3), (3, 3, 3)))

    def loss(w):
        return jax.lax.cond(
            predicate, lambda: jc.conv(x, w), lambda: jc.conv(x, 2 * w, padding=1)
        ).sum()

    want = jax.grad(lambda w: jc.conv(x, w).sum())(w) * (1 if predicate else 2)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(w), want, rtol=1e-12)


# --- what the layer keeps for its backward pass ---------------------------------


def residuals(fun, *args):
    """Shapes and origins of what jax.grad of `fun` keeps, from JAX's own report."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(fun, *args)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    arrays = [line for line in lines if not re.match(r"\w+\[\] ", line)]
    return arrays


@pytest.mark.parametrize(
    ("activation", "kept"),
    [(None, 0), *((name, 1) for name in activations.ACTIVATIONS)],
)
def test_the_reverse_layer_keeps_its_operands_and_one_array(platform, activation, kept):
    shapes = ((2, 6, 6, 4), (3, 3, 4, 8), (8,))
    args = arguments(shapes, "float32")
    fun = functools.partial(jc.conv_bias_act, activation=activation)
    saved = residuals(fun, *args)
    computed = [line for line in saved if "argument" not in line]
    assert len(computed) == kept, saved
    # Bits of y where its kernel writes them.
    allowed = ("f32[2,6,6,8]", "u8[2,6,6,1]")[: 1 + (activation == "relu")]
    assert all(line.startswith(allowed) for line in computed)


@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_an_activations_own_derivative_is_jaxs(platform, name):
    chosen = activations.ACTIVATIONS[name]
    z = jnp.concatenate([jnp.linspace(-8, 8, 4001) + 1e-4, jnp.array([-300.0, 300.0])])
    y, pullback = jax.vjp(chosen.fn, z)
    saved = y if chosen.saves_output else z
    got = chosen.backward(saved, jnp.full_like(y, 3))
    np.testing.assert_allclose(got, pullback(jnp.full_like(y, 3))[0], atol=1e-12)


@pytest.mark.parametrize("activation", ["identity", *activations.ACTIVATIONS])
def test_no_dtype_is_promoted_silently(activation):
    """bf16 in every mode, where JAX refuses to add it to f32."""
    x, w, bias = (
        normal(i, s, "bfloat16") for i, s in enumerate(((2, 5, 5, 3), (3, 3, 3, 4), 4))
    )
    layer = functools.partial(jc.conv_bias_act, activation=activation, scale=bias)
    args = x, w, bias

    def gradients(*args):
        y, pullback = jax.vjp(layer, *args)
        return pullback(y)

    with jax.numpy_dtype_promotion("strict"):
        second = jax.jvp(gradients, args, args)[1]
        by_model = jax.vmap(layer, (None, 0, None))(x, w[None], bias)
    assert {a.dtype for a in (*second, by_model)} == {jnp.dtype("bfloat16")}
