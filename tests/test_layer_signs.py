# SPDX-License-Identifier: Apache-2.0
"""relu's derivative from bits of y instead of y, where backward is given them.

A kernel writes the bits on Hopper GPUs alone (test_layer_hopper.py); here XLA makes
them, so that every transformation is seen with them on any platform.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from sharded import assert_same, collectives, put, training_step

import jax_convbatch as jc
from jax_convbatch._layers import activations, fused


@pytest.fixture
def signs(monkeypatch):
    """A switch: what is traced after it is on keeps bits."""

    def switch(on):
        monkeypatch.setattr(fused, "_keeps_signs", lambda *_, **__: on)
        jax.clear_caches()

    return switch


def arrays(make=normal, k=16):
    shapes = (2, 6, 5, 4), (3, 3, 4, k), (k,), (2, 6, 5, k)
    return [jnp.asarray(make(i, s), "float32") for i, s in enumerate(shapes)]


def layer(x, w, bias, residual=None):
    return jc.conv_bias_act(x, w, bias, activation="relu", residual=residual)


def loss(*args):
    return (layer(*args) ** 3).sum()


def gradient(*args):
    return jax.grad(loss, (0, 1, 2, 3))(*args)


def stacked(a):
    return jnp.stack([a, a + 1])


MODES = {
    "grad": gradient,
    "jvp": lambda *args: jax.jvp(layer, args, args),
    "second order": lambda *args: jax.grad(
        lambda *a: sum((g**2).sum() for g in gradient(*a)), (0, 1, 2, 3)
    )(*args),
    "second order, forward": lambda *args: jax.jvp(gradient, args, args),
    "hessian": lambda x, w, bias, r: jax.hessian(lambda b: loss(x, w, b, r))(bias),
    "samples": lambda x, w, b, r: jax.vmap(gradient, (0, None, None, None))(
        stacked(x), w, b, r
    ),
    "models": lambda x, w, b, r: jax.vmap(gradient, (0, 0, 0, None))(
        *map(stacked, (x, w, b)), r
    ),
    "filters": lambda x, w, b, r: jax.vmap(gradient, (None, 0, None, 0))(
        x, stacked(w), b, stacked(r)
    ),
    "tangents": lambda x, w, b, r: jax.vmap(
        lambda t: jax.jvp(lambda x: layer(x, w, b, r), (x,), (t,))
    )(stacked(x)),
    "remat": lambda *args: jax.grad(jax.checkpoint(loss))(*args),
    "some": lambda *args: jax.grad(loss, (1, 2))(*args),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_what_it_gives_with_y(signs, mode):
    args = arrays()
    run = jax.jit(MODES[mode])
    signs(False)
    want = run(*args)
    signs(True)
    assert "u8[" in str(jax.make_jaxpr(MODES[mode])(*args))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4),
        run(*args),
        want,
    )


@pytest.mark.parametrize(
    ("kept", "ops"),
    [
        ((0, 1, 2), ["act_bgrad", "dgrad", "fprop", "wgrad"]),
        ((0, 1), ["act_bgrad", "dgrad", "fprop", "wgrad"]),
        ((1, 2), ["act_bgrad", "fprop", "wgrad"]),
        ((0,), ["act_bgrad", "dgrad", "fprop"]),
        ((2, 3), ["act_bgrad", "fprop"]),
    ],
)
def test_a_gradient_that_nobody_uses_is_not_computed(signs, kept, ops):
    def some(*args):
        found = gradient(*args)
        return [found[i] for i in kept]

    signs(True)
    rows = jc.explain(some, *arrays())
    assert sorted(row.op for row in rows) == ops


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_signs_are_bits_of_eight_neighbours(axis):
    y = np.array([1, 0, -1, np.nan, np.inf, 1e-40, -0.0, 2] + [0, 1] * 4, "float32")
    y = np.moveaxis(np.tile(y, (3, 2, 1)), -1, axis)
    signs = activations.signs_of(y, axis)
    assert np.moveaxis(signs, axis, -1)[2, 1].tolist() == [0b10110001, 0b10101010]
    np.testing.assert_array_equal(activations.are_positive(signs, axis), y > 0)


SHARDINGS = {
    "batch": (P("data"), P(), P(), P("data")),
    "batch and filters": (P("data"), P(None, None, None, "model"), P(), P("data")),
    "channels": (P(None, None, None, "model"), P(), P(), P()),
    "filters that do not divide": (
        P(),
        P(None, None, None, ("data", "model")),
        P(),
        P(),
    ),
}


@pytest.mark.parametrize("name", SHARDINGS)
def test_sharded_arrays_give_the_same_numbers(signs, mesh_2d, name):
    signs(True)
    args = arrays(whole)
    args = [
        jnp.concatenate([a] * 4) if a.ndim == 4 and a.shape[0] == 2 else a for a in args
    ]

    def fun(x, w, bias):
        return layer(x, w, bias, args[3])

    step = jax.jit(training_step(fun))
    compiled = step.lower(*put(mesh_2d, args[:3], *SHARDINGS[name][:3])).compile()
    assert "u8[" in compiled.as_text()
    if name.startswith("batch"):
        assert collectives(compiled) == {"all-reduce"}
    sharded = compiled(*put(mesh_2d, args[:3], *SHARDINGS[name][:3]))
    assert_same(sharded, jax.jit(training_step(fun))(*args[:3]))
