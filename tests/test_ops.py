# SPDX-License-Identifier: Apache-2.0
"""The operations under the layers: bits of the layers, every transformation, and
errors that name their arguments."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from engines import ENGINES
from jax.test_util import check_grads
from problems import FLOATS, normal

import jax_convbatch as jc
from jax_convbatch import ops
from jax_convbatch._layers import activations

# Shapes of x and w, and options.
CASES = {
    "plain": ((2, 9, 8, 4), (3, 3, 4, 6), {}),
    "strided": ((2, 9, 8, 4), (3, 2, 4, 6), dict(strides=(2, 3), padding=1)),
    "groups": ((2, 9, 8, 4), (3, 3, 2, 6), dict(groups=2, padding="VALID")),
    "depthwise": ((2, 9, 8, 4), (3, 3, 1, 4), dict(groups=4, dilation=2)),
    "transposed": ((2, 5, 4, 4), (4, 4, 4, 6), dict(input_dilation=2, padding=2)),
    "cropped": ((2, 9, 8, 4), (3, 3, 4, 6), dict(padding=((-1, 2), (0, -2)))),
    "one axis": ((3, 12, 5), (4, 5, 7), dict(padding=((3, 0),))),
    "three axes": ((2, 4, 5, 4, 3), (2, 3, 2, 3, 4), dict(strides=(1, 2, 1))),
    "no axes": ((3, 5), (5, 7), {}),
    "channels first": (
        (2, 4, 9, 8),
        (6, 4, 3, 3),
        dict(dimension_numbers=("NCHW", "OIHW", "NCHW"), strides=2),
    ),
    "no samples": ((0, 9, 8, 4), (3, 3, 4, 6), {}),
}
each_case = pytest.mark.parametrize("case", CASES)


def arrays_of(case, dtype="float32", algorithm="auto"):
    x_shape, w_shape, options = CASES[case]
    x, w = (jnp.asarray(normal(i, s, dtype)) for i, s in enumerate((x_shape, w_shape)))
    options = options | {"algorithm": algorithm}
    y = jax.eval_shape(functools.partial(jc.conv, **options), x, w)
    return x, w, jnp.asarray(normal(2, y.shape, dtype)), options


def assert_same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@each_case
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", ["auto", "im2col_gemm", "xla"])
def test_they_have_the_bits_of_conv_and_its_gradients(x64, case, dtype, algorithm):
    x, w, dy, options = arrays_of(case, dtype, algorithm)

    @jax.jit
    def by_hand(x, w, dy):
        y = ops.fprop(x, w, **options)
        dx = ops.dgrad(dy, w, x.shape, **options)
        return y, dx, ops.wgrad(x, dy, w.shape, **options)

    @jax.jit
    def built_in(x, w, dy):
        y, pullback = jax.vjp(functools.partial(jc.conv, **options), x, w)
        return y, *pullback(dy)

    for got, want in zip(by_hand(x, w, dy), built_in(x, w, dy), strict=True):
        assert_same_bits(got, want)


def test_they_are_the_operations_of_the_float64_reference(x64):
    x, w, dy, options = arrays_of("strided", "float64")
    how = oracle.Conv((2, 3), ((1, 1), (1, 1)), (1, 1), (1, 1))
    a, b, c = map(np.asarray, (x, w, dy))
    for got, want in (
        (ops.fprop(x, w, **options), oracle.fprop(a, b, how)),
        (ops.dgrad(dy, w, x.shape, **options), oracle.dgrad(c, b, how, x.shape[1:-1])),
        (ops.wgrad(x, dy, w.shape, **options), oracle.wgrad(a, c, how, w.shape[:2])),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", ENGINES)
def test_each_is_one_call_of_the_engine_that_is_named(algorithm):
    x, w, dy, options = arrays_of("strided", algorithm=algorithm)
    for op, arguments in (
        ("fprop", (x, w)),
        ("dgrad", (dy, w, x.shape)),
        ("wgrad", (x, dy, w.shape)),
    ):
        fun = functools.partial(getattr(ops, op), *arguments, **options)
        text = jax.jit(fun).lower().as_text()
        assert re.findall(r"@jax_convbatch_(\w+)\(", text) == [f"{algorithm}_{op}"]
        (row,) = jc.explain(fun)
        assert (row.op, row.engine) == (op, algorithm)


def test_the_workspace_is_that_of_the_operation():
    x, w, dy, options = arrays_of("plain", algorithm="im2col_gemm")
    for op, arguments in (("dgrad", (dy, w, x.shape)), ("wgrad", (x, dy, w.shape))):
        fun = functools.partial(getattr(ops, op), *arguments, **options)
        with pytest.raises(ValueError, match=f"too small for this {op}") as refused:
            jax.eval_shape(functools.partial(fun, workspace_limit=1))
        least = int(re.findall(r"(\d+) bytes", str(refused.value))[-1])
        (row,) = jc.explain(functools.partial(fun, workspace_limit=least))
        assert 1 < row.workspace_bytes <= least
        assert_same_bits(fun(workspace_limit=least), fun())


UNCOVERED = {
    "complex": ((2, 9, 8, 4), (3, 3, 4, 6), "complex64", {}),
    "four axes": (
        *((1, 3, 3, 3, 3, 2), (2, 2, 2, 2, 2, 3), "float32"),
        dict(
            dimension_numbers=jax.lax.ConvDimensionNumbers(
                (0, 5, 1, 2, 3, 4), (5, 4, 0, 1, 2, 3), (0, 5, 1, 2, 3, 4)
            )
        ),
    ),
}


@pytest.mark.parametrize("case", UNCOVERED)
def test_what_no_engine_covers_runs_in_jax_lax(case):
    x, w, dtype, options = UNCOVERED[case]
    x, w = (jnp.asarray(normal(i, s, "float32"), dtype) for i, s in enumerate((x, w)))
    y, pullback = jax.vjp(functools.partial(jc.conv, **options), x, w)
    dx, dw = pullback(y)
    assert_same_bits(ops.fprop(x, w, **options), y)
    np.testing.assert_allclose(ops.dgrad(y, w, x.shape, **options), dx, rtol=1e-5)
    np.testing.assert_allclose(ops.wgrad(x, y, w.shape, **options), dw, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot run this convolution"):
        ops.dgrad(y, w, x.shape, **options, algorithm="im2col_gemm")


def test_symbolic_sizes_run_in_jax_lax():
    (n,) = jax.export.symbolic_shape("n")
    x, w, dy, options = arrays_of("strided")

    def step(x, w, dy):
        dx = ops.dgrad(dy, w, x.shape, **options)
        return dx, ops.wgrad(x, dy, w.shape, **options)

    like = [jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype) for a in (x, dy)]
    exported = jax.export.export(jax.jit(step))(like[0], w, like[1])
    got, want = exported.call(x, w, dy), step(x, w, dy)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# --- transformations ------------------------------------------------------------


@pytest.mark.parametrize("case", ["strided", "groups", "channels first"])
def test_they_have_every_derivative(x64, case):
    x, w, dy, options = arrays_of(case, "float64")

    def dgrad(dy, w):
        return ops.dgrad(dy, w, x.shape, **options)

    def wgrad(x, dy):
        return ops.wgrad(x, dy, w.shape, **options)

    check = functools.partial(check_grads, order=2, rtol=1e-6, atol=1e-6)
    check(functools.partial(ops.fprop, **options), (x, w), modes=("fwd", "rev"))
    check(dgrad, (dy, w), modes=("fwd", "rev"))
    check(wgrad, (x, dy), modes=("fwd", "rev"))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (1, 2)])
def test_vmap_is_a_loop(x64, axes):
    _, w, dy, options = arrays_of("strided", "float64")
    x_shape = CASES["strided"][0]
    shapes = dy.shape, w.shape
    dys, ws = (
        normal(i, s if a is None else (*s[:a], 3, *s[a:]), "float64")
        for i, (s, a) in enumerate(zip(shapes, axes, strict=True))
    )
    dgrad = functools.partial(ops.dgrad, x_shape=x_shape, **options)
    got = jax.vmap(dgrad, axes)(dys, ws)
    for i in range(3):
        one = [
            a if at is None else np.take(a, i, at)
            for a, at in zip((dys, ws), axes, strict=True)
        ]
        np.testing.assert_allclose(got[i], dgrad(*one), rtol=1e-12, atol=1e-12)


# --- bias and activation --------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_bias_grad_is_the_sum_over_all_other_axes(x64, dtype, axis):
    dy = jnp.asarray(normal(0, (3, 5, 7), dtype))
    got = ops.bias_grad(dy, channel_axis=axis)
    others = tuple(i for i in range(3) if i != axis % 3)
    want = np.asarray(dy, "float64").sum(others)
    assert got.dtype == dy.dtype
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(oracle.float64(got), want, rtol=4 * eps, atol=64 * eps)
    assert "jax_convbatch_bgrad" in jax.jit(ops.bias_grad).lower(dy).as_text()


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_act_bias_grad_is_the_derivative_and_its_sum(x64, name, axis):
    chosen = activations.lookup(name)
    z, dy = (jnp.asarray(normal(i, (3, 5, 7), "float64")) for i in range(2))
    saved = chosen.fn(z) if chosen.saves_output else z
    fun = functools.partial(ops.act_bias_grad, name, channel_axis=axis)
    dz, db = jax.jit(fun)(saved, dy)
    want = jax.vjp(chosen.fn, z)[1](dy)[0]
    np.testing.assert_allclose(dz, want, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(db, want.sum((0, 3 - axis % 3)), rtol=1e-12, atol=1e-13)
    text = jax.jit(fun).lower(saved, dy).as_text()
    assert re.findall(r"@jax_convbatch_(\w+)\(", text) == ["act_bgrad"]


@pytest.mark.parametrize("name", [None, "identity"])
def test_without_an_activation_dz_is_dy(name):
    dy = jnp.asarray(normal(0, (3, 5, 7), "float32"))
    dz, db = ops.act_bias_grad(name, None, dy, channel_axis=1)
    assert_same_bits(dz, dy)
    assert_same_bits(db, ops.bias_grad(dy, channel_axis=1))


def test_act_bias_grad_has_every_derivative(x64):
    y, dy = (jnp.asarray(normal(i, (3, 5), "float64")) for i in range(2))
    fun = functools.partial(ops.act_bias_grad, "tanh")
    check_grads(fun, (y, dy), order=2, modes=("fwd", "rev"), rtol=1e-6, atol=1e-6)


# --- errors -----------------------------------------------------------------------


def refuse(kind, message, function, *arguments, **options):
    with pytest.raises(kind, match=message) as refused:
        jax.eval_shape(functools.partial(function, **options), *arguments)
    return str(refused.value)


def test_a_cotangent_of_another_shape_is_refused():
    x, w, dy, options = arrays_of("strided")
    for wrong in (dy[:1], dy[..., :5], dy[:, 1:]):
        for algorithm in ("auto", "xla"):
            named = options | {"algorithm": algorithm}
            for fun in (
                lambda d, named=named: ops.dgrad(d, w, x.shape, **named),
                lambda d, named=named: ops.wgrad(x, d, w.shape, **named),
            ):
                message = refuse(ValueError, "dy must have shape", fun, wrong)
                assert str(dy.shape) in message and str(wrong.shape) in message


def test_two_dtypes_are_refused_by_name():
    x, w, dy, options = arrays_of("plain")
    half = dy.astype("bfloat16")
    names = "dy and w must have one dtype, got bfloat16 and float32"
    refuse(TypeError, names, lambda: ops.dgrad(half, w, x.shape, **options))
    names = "x and dy must have one dtype, got float32 and bfloat16"
    refuse(TypeError, names, lambda: ops.wgrad(x, half, w.shape, **options))
    names = "saved and dy must have one dtype, got float32 and bfloat16"
    refuse(TypeError, names, lambda: ops.act_bias_grad("relu", dy, half))


@pytest.mark.parametrize("bad", [None, 1.0, [1.0]])
def test_what_is_no_array_is_refused_by_name(bad):
    x, w, dy, _ = arrays_of("plain")
    refuse(TypeError, "dy must be an array", lambda: ops.dgrad(bad, w, x.shape))
    refuse(TypeError, "w must be an array", lambda: ops.dgrad(dy, bad, x.shape))
    refuse(TypeError, "x must be an array", lambda: ops.wgrad(bad, dy, w.shape))
    refuse(TypeError, "dy must be an array", lambda: ops.bias_grad(bad))
    refuse(TypeError, "saved must be", lambda: ops.act_bias_grad("relu", bad, dy))


@pytest.mark.parametrize("bad", [3, None, (2, 8.5, 8, 4)])
def test_what_is_no_shape_is_refused_by_name(bad):
    x, w, dy, _ = arrays_of("plain")
    refuse(TypeError, "x_shape must be a seq", lambda: ops.dgrad(dy, w, bad))
    refuse(TypeError, "w_shape must be a seq", lambda: ops.wgrad(x, dy, bad))
    refuse(ValueError, "w must have as many axes", lambda: ops.dgrad(dy, w, (2, 4)))


def test_a_traced_shape_is_refused_with_the_mend():
    x, w, dy, options = arrays_of("plain")
    dgrad = functools.partial(ops.dgrad, **options)
    with pytest.raises(TypeError, match="'x_shape' in static_argnames"):
        jax.jit(dgrad)(dy, w, x.shape)
    assert jax.jit(dgrad, static_argnums=2)(dy, w, x.shape).shape == x.shape


def test_operands_of_wgrad_in_the_other_order_are_refused_as_such():
    x, w, dy, options = arrays_of("plain")
    with pytest.raises(ValueError, match=r"are x and dy in this order\?") as caught:
        ops.wgrad(dy, x, w.shape, **options)
    assert str(tuple(w.shape)) in str(caught.value)
    # Where the other order does not fit either, nothing is said of it.
    refuse(ValueError, "w must have", lambda: ops.wgrad(dy, dy, w.shape, **options))


def test_an_array_in_the_place_of_its_shape_is_named_not_printed():
    x, w, dy, options = arrays_of("plain")
    got = rf"got an array of shape {re.escape(str(x.shape))}; pass its shape"
    with pytest.raises(TypeError, match=got):
        ops.dgrad(dy, w, x, **options)


def test_a_function_in_the_place_of_an_activation_is_refused():
    dy = jnp.ones((3, 5))
    for function in (jax.nn.relu, jnp.tanh, lambda v: v):
        with pytest.raises(TypeError, match="by its name; for a function use"):
            ops.act_bias_grad(function, dy, dy)


def test_an_axis_or_activation_that_is_not_there_is_refused():
    dy = jnp.ones((3, 5))
    for axis in (2, -3):
        refuse(ValueError, f"channel_axis {axis}", ops.bias_grad, dy, channel_axis=axis)
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        ops.act_bias_grad("swish", dy, dy)
    with pytest.raises(ValueError, match=r"saved must have the shape of dy, \(3, 5\)"):
        ops.act_bias_grad("relu", dy[:1], dy)


@pytest.mark.parametrize(
    ("name", "what"), [("relu", "result y"), ("gelu", "pre-activation z")]
)
def test_what_an_activation_wants_saved_is_told(name, what):
    words = f"saved must be the layer's {what} for '{name}', got None"
    refuse(TypeError, words, lambda: ops.act_bias_grad(name, None, jnp.ones((2, 3))))
