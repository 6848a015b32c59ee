# SPDX-License-Identifier: Apache-2.0
"""causal_conv1d under grad, vmap, scan and on several devices; what it refuses."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from problems import normal, whole
from sharded import assert_same, assert_spec, collectives, put

import jax_convbatch as jc

TAPS, DILATION = 3, 2
REACH = (TAPS - 1) * DILATION
IDS = np.sort(np.random.default_rng(0).integers(0, 3, (4, 16)))


def operands(random=normal, dtype="float32", n=4, length=16, channels=8):
    """x, w, bias and the state."""
    shapes = (n, length, channels), (TAPS, channels), (channels,), (n, REACH, channels)
    return [jnp.asarray(random(i, s, dtype)) for i, s in enumerate(shapes)]


def layer(x, w, bias, state=None, ids=None):
    return jc.causal_conv1d(
        x,
        w,
        bias,
        activation="silu",
        initial_state=state,
        segment_ids=ids,
        return_final_state=True,
        dilation=DILATION,
    )


def loss(*arrays):
    y, state = layer(*arrays)
    return (y.astype("float32") ** 2).sum() + jnp.sin(state.astype("float32")).sum()


@pytest.mark.parametrize("ids", [None, IDS[:2, :7]])
def test_gradients_agree_with_finite_differences(x64, ids):
    arrays = operands(dtype="float64", n=2, length=7, channels=3)
    run = functools.partial(layer, ids=ids)
    check_grads(run, arrays, order=2, modes=("fwd", "rev"), rtol=1e-5)
    x, w, bias, state = arrays

    def update(state, x, w, bias):
        return jc.causal_conv1d_update(state, x, w, bias, dilation=DILATION)

    check_grads(update, (state, x[:, 0], w, bias), order=2, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", jnp.tanh])
def test_other_activations_follow_the_kernel(activation):
    x, w, bias, _ = operands()
    got = jc.causal_conv1d(x, w, bias, activation=activation)
    z = jc.causal_conv1d(x, w, bias)
    fn = activation if callable(activation) else getattr(jax.nn, activation)
    np.testing.assert_array_equal(got, fn(z))


MAPPED = [
    dims
    for dims in itertools.product((0, None), repeat=4)
    if any(d is not None for d in dims)
]


@pytest.mark.parametrize("dims", MAPPED, ids=str)
def test_vmap_is_a_loop(dims):
    """Samples go into N, weights into sets of their own: the bits are the same."""
    arrays = operands()
    stacked = [
        a if d is None else jnp.stack([a, a + 1, 2 * a], d)
        for a, d in zip(arrays, dims, strict=True)
    ]
    for run in (layer, jax.grad(loss, range(4))):
        got = jax.jit(jax.vmap(run, dims))(*stacked)
        for i in range(3):
            one = [
                a if d is None else jnp.take(a, i, d)
                for a, d in zip(stacked, dims, strict=True)
            ]
            assert_same(jax.tree.map(lambda a, i=i: a[i], got), jax.jit(run)(*one))


def test_vmap_of_decoding():
    x, w, bias, state = operands()
    run = functools.partial(jc.causal_conv1d_update, dilation=DILATION)
    step = jax.vmap(run, (None, 1, 0, None), 1)
    got, after = step(state, x, jnp.stack([w] * 16), bias)
    for l in range(16):
        assert_same((got[:, l], after[:, l]), run(state, x[:, l], w, bias))


def test_scan_over_parts():
    x, w, bias, state = operands()
    want, last = layer(x, w, bias, state)

    def step(state, part):
        y, state = layer(part, w, bias, state)
        return state, y

    parts = jnp.swapaxes(x.reshape(4, 4, 4, 8), 0, 1)
    state, y = jax.lax.scan(step, state, parts)
    np.testing.assert_array_equal(jnp.swapaxes(y, 0, 1).reshape(x.shape), want)
    np.testing.assert_array_equal(state, last)


def gradients(*arrays, ids=None):
    """y, and the gradients of all arrays."""

    def run(x, w, bias, state=None):
        return layer(x, w, bias, state, ids)[0]

    y, pullback = jax.vjp(run, *arrays)
    return y, pullback(y)


CUTS = {
    "samples": (P("data"), P(), P(), P("data")),
    "channels": (
        P(None, None, "data"),
        P(None, "data"),
        P("data"),
        P(None, None, "data"),
    ),
    "sequence": (P(None, "data"), P(), P(), P()),
    "samples and sequence": (P("data", "model"), P(), P(), P("data")),
    "channels and sequence": (
        P(None, "data", "model"),
        P(None, "model"),
        P("model"),
        P(None, None, "model"),
    ),
}


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_what_is_sharded_stays_where_it_is(request, cut, state, ids):
    """Nobody gathers x; y, dx and dstate have the bits of one device."""
    both = " and " in cut
    mesh = request.getfixturevalue("mesh_2d" if both else "mesh")
    arrays = operands(functools.partial(whole, most=1), n=8, length=32)
    count = 3 + state
    given = np.sort(np.random.default_rng(1).integers(0, 5, (8, 32)))
    run = jax.jit(functools.partial(gradients, ids=given if ids else None))
    want = run(*arrays[:count])
    sharded = put(mesh, arrays[:count], *CUTS[cut][:count])
    compiled = run.lower(*sharded).compile()
    assert not collectives(compiled) & {"all-gather", "all-to-all"}, cut
    if "sequence" in cut:
        assert "collective-permute" in collectives(compiled)
    got = compiled(*sharded)
    (y, (dx, *sums, dstate)), (want_y, (want_dx, *want_sums, want_dstate)) = (
        (a, b if state else (*b, None)) for a, b in (got, want)
    )
    assert_same((y, dx, dstate), (want_y, want_dx, want_dstate))
    for g, w in zip(sums, want_sums, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-4)
    assert_spec(y, *CUTS[cut][0])
    assert_spec(dx, *CUTS[cut][0])


def test_sequences_cut_too_fine_are_gathered(mesh):
    """A filter reaches past its neighbour: right, if not where it lies."""
    arrays = operands(n=2, length=16)
    want = jax.jit(gradients)(*arrays)
    got = jax.jit(gradients)(*put(mesh, arrays, P(None, "data"), P(), P(), P()))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_explicit_axes(explicit_mesh):
    arrays = operands(n=8)
    want = jax.jit(gradients)(*arrays)
    specs = (P("data", None, "model"), P(None, "model"), P("model"))
    sharded = put(explicit_mesh, arrays, *specs, P("data", None, "model"))
    y, (dx, *_) = jax.jit(gradients)(*sharded)
    assert_same((y, dx), (want[0], want[1][0]))
    assert jax.typeof(y).sharding.spec == P("data", None, "model")


def test_one_tap_needs_no_neighbour(mesh):
    x, _, bias, _ = operands(n=2, length=16)
    w, ids = jnp.ones((1, 8)), np.repeat([[0, 1], [3, 3]], 8, axis=1)
    run = functools.partial(jc.causal_conv1d, bias=bias, segment_ids=ids)
    (sharded,) = put(mesh, [x], P(None, "data"))
    got, dx = jax.jit(jax.value_and_grad(lambda x: run(x, w).sum()))(sharded)
    want, want_dx = jax.jit(jax.value_and_grad(lambda x: run(x, w).sum()))(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_array_equal(dx, want_dx)


def test_explicit_axes_that_are_mapped_or_shorter_than_the_state(explicit_mesh):
    x, w, bias, state = operands(n=8)
    stacked = jnp.stack([x, 2 * x, 3 * x, x + 1])
    (sharded,) = put(explicit_mesh, [stacked], P("data"))
    run = jax.vmap(lambda x: jc.causal_conv1d(x, w, bias))
    assert_same(jax.jit(run)(sharded), jax.jit(run)(stacked))
    short = functools.partial(layer, w=w, bias=bias)
    (sharded,) = put(explicit_mesh, [x[:, :2]], P("data"))
    assert_same(jax.jit(short)(sharded), short(x[:, :2]))
    assert_same(jax.jit(short)(sharded, state=state), short(x[:, :2], state=state))


def test_shard_map_over_samples(mesh):
    x, w, bias, state = operands(n=8)
    run = jax.shard_map(
        lambda *a: layer(*a),
        mesh=mesh,
        in_specs=(P("data"), P(), P(), P("data")),
        out_specs=P("data"),
    )
    assert_same(jax.jit(run)(x, w, bias, state), layer(x, w, bias, state))


X, W = jnp.ones((2, 6, 4)), jnp.ones((3, 4))
REFUSED = {
    "x must be \\[N, L, C\\], got shape \\(6, 4\\)": dict(x=X[0]),
    "w must be .* 4 channels .* got shape \\(4, 3\\); is it \\[C, taps\\]": dict(w=W.T),
    "w must be .* \\(3, 1, 4\\); .* w\\[:, 0\\] fits": dict(w=W[:, None]),
    "w must be .* got shape \\(\\)": dict(w=jnp.ones(())),
    "w must be .* at least one tap, got shape \\(0, 4\\)": dict(w=W[:0]),
    "bias must be \\[C\\] with the 4 channels of x, got shape \\(3,\\)": dict(
        bias=jnp.ones(3)
    ),
    "x must be of a floating dtype, got int32": dict(x=jnp.ones((2, 6, 4), int)),
    "initial_state must be .* = \\(2, 2, 4\\), got shape \\(2, 3, 4\\)": dict(
        initial_state=jnp.ones((2, 3, 4))
    ),
    "initial_state must have the dtype of x, float32, got bfloat16": dict(
        initial_state=jnp.ones((2, 2, 4), jnp.bfloat16)
    ),
    "segment_ids must be \\[N, L\\] = \\(2, 6\\), as x, got shape \\(6,\\)": dict(
        segment_ids=jnp.ones(6, int)
    ),
    "segment_ids must be integers, got float32": dict(segment_ids=jnp.ones((2, 6))),
    "dilation must be at least 1, got 0": dict(dilation=0),
    "dilation must be an int, got 1.5": dict(dilation=1.5),
    "unknown activation 'swoosh'": dict(activation="swoosh"),
    "'seq_idx'; did you mean 'segment_ids'": dict(seq_idx=None),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    options = dict(x=X, w=W) | REFUSED[message]
    with pytest.raises((ValueError, TypeError), match=message):
        jc.causal_conv1d(**options)


def test_what_the_update_refuses():
    state = jnp.ones((2, 2, 4))
    with pytest.raises(ValueError, match=r"x must be \[N, C\], .* in this order\?"):
        jc.causal_conv1d_update(X[:, 0], state, W)
    with pytest.raises(ValueError, match=r"state must be .* = \(2, 2, 4\), got"):
        jc.causal_conv1d_update(state[:1], X[:, 0], W)
    with pytest.raises(TypeError, match="state must have the dtype of x"):
        jc.causal_conv1d_update(state.astype("bfloat16"), X[:, 0], W)
