# SPDX-License-Identifier: Apache-2.0
"""Under a mesh of explicit axes the types carry the shardings of `jax.lax`."""

import functools

import jax
import pytest
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from sharded import (
    CHANNELS_LAST,
    arrays,
    assert_same,
    layer,
    put,
    training_step,
)

import jax_convbatch as jc

# Shardings of x and w whose result jax.lax knows without being told.
EXPLICIT = {
    "nothing": (P(), P()),
    "batch": (P("data"), P()),
    "batch over both": (P(("data", "model")), P()),
    "image": (P(None, "model"), P()),
}


@pytest.mark.parametrize("specs", EXPLICIT)
@pytest.mark.parametrize("jit", [False, True])
def test_types_carry_the_shardings_of_jax_lax(explicit_axes, specs, jit):
    def results(function, x, w):
        def fun(x, w):
            return function(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)

        y, pullback = jax.vjp(fun, x, w)
        out = y, *pullback(2 * y)
        types.append([jax.typeof(a) for a in out])
        return out

    types, values = [], []
    x, w, _ = arrays(whole)
    want = results(jc.conv_general_dilated, x, w)
    types.clear()
    with jax.set_mesh(explicit_axes):
        x, w = put(explicit_axes, (x, w), *EXPLICIT[specs])
        for function in (jc.conv_general_dilated, jax.lax.conv_general_dilated):
            fun = functools.partial(results, function)
            values.append((jax.jit(fun) if jit else fun)(x, w))
    ours, theirs = types
    assert ours == theirs
    # jax.lax's own dw is wrong where the image is sharded.
    assert_same(values[0], want)


@pytest.mark.parametrize("specs", EXPLICIT)
def test_a_layers_gradients_have_the_types_of_its_operands(explicit_axes, specs):
    step = jax.jit(training_step(layer))
    args = arrays(whole)
    want = step(*args)
    with jax.set_mesh(explicit_axes):
        sharded = put(explicit_axes, args, *EXPLICIT[specs], P())
        got = step(*sharded)
        for gradient, operand in zip(got[1], sharded, strict=True):
            assert jax.typeof(gradient) == jax.typeof(operand)
    assert_same(got, want)


def test_out_sharding_is_that_of_jax_lax(explicit_mesh):
    x, w, _ = arrays(whole)
    x, w = put(explicit_mesh, (x, w), P("data"), P())
    spec = P("data", None, None, "model")
    kwargs = dict(dimension_numbers=CHANNELS_LAST, out_sharding=spec)
    ours, theirs = (
        jax.jit(lambda x, w, f=f: f(x, w, (1, 1), "SAME", **kwargs))(x, w)
        for f in (jc.conv_general_dilated, jax.lax.conv_general_dilated)
    )
    assert jax.typeof(ours) == jax.typeof(theirs)
    assert_same(ours, theirs)


# Shardings of x and w that jax.lax wants an out_sharding for.
AMBIGUOUS = {
    "channels": (P(None, None, None, "data"), P(None, None, "data")),
    "filters": (P(), P(None, None, None, "model")),
}


@pytest.mark.parametrize("specs", AMBIGUOUS)
def test_an_ambiguous_sharding_is_refused_as_by_jax_lax(explicit_mesh, specs):
    x, w, _ = arrays()
    x, w = put(explicit_mesh, (x, w), *AMBIGUOUS[specs])
    errors = []
    for function in (jax.lax.conv_general_dilated, jc.conv_general_dilated):
        with pytest.raises(Exception) as caught:
            function(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_scan_and_remat_under_an_explicit_mesh(explicit_mesh):
    x = normal(0, (8, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4

    def loss(x, w):
        @jax.remat
        def body(x, w):
            return jc.conv_bias_act(x, w, activation="gelu"), None

        return (jax.lax.scan(body, x, w)[0] ** 2).sum()

    x, w = put(explicit_mesh, (x, w), P("data"), P())
    dx, dw = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    assert jax.typeof(dx) == jax.typeof(x)
    assert jax.typeof(dw) == jax.typeof(w)


def test_forward_mode_under_an_explicit_mesh(explicit_mesh):
    x, w, bias = arrays(whole)
    x, w, bias = put(explicit_mesh, (x, w, bias), P("data"), P(), P())
    y, t = jax.jit(lambda *a: jax.jvp(layer, a, a))(x, w, bias)
    assert jax.typeof(t) == jax.typeof(y)
    assert jax.typeof(y).sharding.spec == P("data", None, None, None)
