# SPDX-License-Identifier: Apache-2.0
"""causal_conv1d and its update against a float64 sum over taps; bits of parts, of
other batches and of other places."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import normal, whole

import jax_convbatch as jc
from jax_convbatch._native import targets

DTYPES = ("float32", "bfloat16", "float16")
# N, L, C, taps, dilation: every number of taps; vectors of channels and odd ones;
# sequences shorter than what a tap reaches, than a dilation, and of many chunks.
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 5, 3, 2, 1),
    (3, 40, 64, 3, 1),
    (2, 300, 40, 4, 1),
    (2, 37, 33, 5, 2),
    (1, 65, 16, 6, 3),
    (2, 9, 8, 7, 5),
    (1, 33, 264, 8, 1),
    (2, 3, 24, 4, 9),
    (1, 1000, 16, 4, 4),
]


def sum_over_taps(x, w, bias=None, state=None, ids=None, dilation=1):
    """z in float64, of whatever array has."""
    x, w = (np.asarray(a, "float64") for a in (x, w))
    n, length, channels = x.shape
    taps = len(w)
    reach = (taps - 1) * dilation
    if state is None:
        state = np.zeros((n, reach, channels))
    rows = np.concatenate([np.asarray(state, "float64"), x], 1)
    z = np.zeros(x.shape) if bias is None else np.zeros(x.shape) + np.asarray(bias)
    for t, l in itertools.product(range(taps), range(length)):
        read = l - reach + t * dilation
        row = rows[:, l + t * dilation]
        if ids is not None:
            row = np.where((ids[:, max(read, 0)] == ids[:, l])[:, None], row, 0)
        z[:, l] += w[t] * row
    return z


def silu(z):
    return z / (1 + np.exp(-z))


def arrays_of(shape, dtype, random=normal, state=False, ids=False):
    """x, w and bias, and what else is asked for as options."""
    n, length, channels, taps, dilation = shape
    x = jnp.asarray(random(0, (n, length, channels), dtype))
    w, bias = random(1, (taps, channels), "float32"), random(2, (channels,), "float32")
    more = dict(dilation=dilation)
    if state:
        rows = (n, (taps - 1) * dilation, channels)
        more["initial_state"] = jnp.asarray(random(3, rows, dtype))
    if ids:
        rng = np.random.default_rng(4)
        more["segment_ids"] = np.sort(rng.integers(0, 4, (n, length)))
    return (x, jnp.asarray(w), jnp.asarray(bias)), more


def oracle_of(arrays, more):
    names = dict(initial_state="state", segment_ids="ids", dilation="dilation")
    return sum_over_taps(*arrays, **{names[k]: v for k, v in more.items()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", "state", "ids", "state and ids"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_sum_over_taps(platform, shape, kind, dtype):
    arrays, more = arrays_of(
        shape, dtype, functools.partial(whole, most=2), "state" in kind, "ids" in kind
    )
    want = oracle_of(arrays, more)
    np.testing.assert_array_equal(
        np.asarray(jc.causal_conv1d(*arrays, **more), "float64"), want
    )
    x, w, _ = arrays
    more = {**more, "activation": "silu"}
    got = np.asarray(jc.causal_conv1d(x, w, **more), "float64")
    del more["activation"]
    want = silu(oracle_of((x, w), more))
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got, want, rtol=eps, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("kind", ["plain", "state and ids"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_the_composition(
    platform, shape, kind, activation, dtype
):
    arrays, more = arrays_of(shape, dtype, state="state" in kind, ids="ids" in kind)
    state = more.pop("initial_state", None)
    dy = jnp.asarray(normal(5, arrays[0].shape, dtype))
    operands = (*arrays, *([state] if state is not None else []))

    def layer(x, w, bias, *state):
        of_state = dict(initial_state=state[0]) if state else {}
        fun = jc.causal_conv1d
        return fun(x, w, bias, activation=activation, **of_state, **more)

    got = jax.vjp(layer, *operands)[1](dy)
    with jax.enable_x64(True):
        # More precise operands are composed, and differentiated by JAX.
        precise = [jnp.asarray(np.asarray(a, "float64")) for a in operands]
        dz = jnp.asarray(np.asarray(dy, "float64"))
        with jax.default_device(jax.devices("cpu")[0]):
            want = jax.vjp(layer, *precise)[1](dz)
    eps = float(jnp.finfo(dtype).eps)
    for g, p, name in zip(got, want, ("dx", "dw", "dbias", "dstate"), strict=False):
        scale = max(float(np.abs(p).max(initial=0)), 1e-3)
        tolerance = max(eps if name in ("dx", "dstate") else 0, 1e-5)
        np.testing.assert_allclose(
            np.asarray(g, "float64"), p, rtol=2 * eps, atol=tolerance * scale
        )


@pytest.mark.parametrize("taps", [1, 3, 8, 11])
def test_float64_and_long_filters_are_the_sum_too(x64, taps):
    x, w, state = (
        normal(i, s) for i, s in enumerate(((2, 30, 5), (taps, 5), (2, taps - 1, 5)))
    )
    got = jc.causal_conv1d(x, w, initial_state=state)
    np.testing.assert_allclose(got, sum_over_taps(x, w, state=state), atol=1e-12)
    ids = np.repeat([[0, 1, 2], [5, 5, 6]], 10, axis=1)
    got = jc.causal_conv1d(x, w, segment_ids=ids)
    np.testing.assert_allclose(got, sum_over_taps(x, w, ids=ids), atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_a_sequence_in_parts_has_the_bits_of_the_whole(platform, shape, dtype):
    (x, w, bias), more = arrays_of(shape, dtype, ids=True)
    ids = more.pop("segment_ids")
    ids[:] = ids[:, :1]  # a part that starts a segment starts without a state
    run = functools.partial(jc.causal_conv1d, activation="silu", **more)
    want, last = run(x, w, bias, return_final_state=True)
    length = x.shape[1]
    for cuts in ((length // 2,), (1, length // 3 + 1), tuple(range(1, length, 7))):
        parts, state, start = [], None, 0
        for end in (*cuts, length):
            y, state = run(
                x[:, start:end],
                w,
                bias,
                segment_ids=ids[:, start:end],
                initial_state=state,
                return_final_state=True,
            )
            parts.append(y)
            start = end
        np.testing.assert_array_equal(np.concatenate(parts, 1), want)
        np.testing.assert_array_equal(state, last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decoding_has_the_bits_of_the_sequence(platform, shape, dtype):
    (x, w, bias), more = arrays_of(shape, dtype)
    x = x[:, :40]
    want, last = jc.causal_conv1d(
        x, w, bias, activation="silu", return_final_state=True, **more
    )
    update = functools.partial(jc.causal_conv1d_update, activation="silu", **more)
    step = jax.jit(update, donate_argnums=0)
    state = jnp.zeros_like(last)
    for l in range(x.shape[1]):
        y, state = step(state, x[:, l], w, bias)
        np.testing.assert_array_equal(y, want[:, l])
    np.testing.assert_array_equal(state, last)


def test_a_donated_state_is_not_copied(platform):
    (x, w, bias), _ = arrays_of((4, 9, 64, 4, 1), "bfloat16")
    state = jnp.zeros((4, 3, 64), x.dtype)
    update = functools.partial(jc.causal_conv1d_update, activation="silu")

    def steps(state, xs):
        def step(state, x):
            return update(state, x, w, bias)[::-1]

        return jax.lax.scan(step, state, xs)

    for run, given in ((update, (x[:, 0], w, bias)), (steps, (x.swapaxes(0, 1),))):
        step = jax.jit(run, donate_argnums=0)
        text = step.lower(state, *given).compile().as_text()
        copies = re.findall(r"= bf16\[(?:1,)?4,3,64\]\S* copy\(", text)
        assert not copies or not targets.available(platform), text


def test_the_final_state_of_a_segment_leaves_out_the_others():
    (x, w, _), _ = arrays_of((2, 6, 3, 5, 1), "float32")
    ids = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    _, state = jc.causal_conv1d(x, w, segment_ids=ids, return_final_state=True)
    want = np.asarray(x[:, 2:]).copy()
    want[0, :2] = 0
    np.testing.assert_array_equal(state, want)


def test_no_bits_depend_on_the_batch_or_the_place(platform):
    shape = (7, 500, 48, 4, 1)
    (x, w, bias), more = arrays_of(shape, "bfloat16")
    dy = jnp.asarray(normal(5, x.shape, "bfloat16"))

    def both(x, dy):
        run = functools.partial(jc.causal_conv1d, activation="silu", **more)
        y, pullback = jax.vjp(lambda x: run(x, w, bias), x)
        return y, pullback(dy)[0]

    y, dx = both(x, dy)
    for n in (0, 6):
        one = both(x[n : n + 1], dy[n : n + 1])
        np.testing.assert_array_equal(one[0][0], y[n])
        np.testing.assert_array_equal(one[1][0], dx[n])
    # The same rows behind others, in other chunks.
    later = both(*(jnp.concatenate([a[:, :77] * 0, a], 1) for a in (x, dy)))
    np.testing.assert_array_equal(later[0][:, 77 + 3 :], y[:, 3:])
    np.testing.assert_array_equal(later[1][:, 77 + 3 :], dx[:, 3:])


def test_a_hundred_runs_agree(platform):
    (x, w, bias), more = arrays_of((4, 700, 72, 4, 1), "bfloat16", ids=True)

    @jax.jit
    def step(x, w, bias):
        run = functools.partial(jc.causal_conv1d, activation="silu", **more)
        return jax.value_and_grad(lambda *a: (run(*a) ** 2).sum(), (0, 1, 2))(
            x, w, bias
        )

    first = jax.tree.map(np.asarray, step(x, w, bias))
    for _ in range(99):
        jax.tree.map(np.testing.assert_array_equal, first, step(x, w, bias))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_segment(platform, value):
    (x, w, bias), _ = arrays_of((1, 12, 16, 4, 1), "float32")
    ids = np.repeat([[0, 1, 2]], 4, axis=1)
    x = x.at[:, 4:8].set(value)
    run = functools.partial(
        jc.causal_conv1d, w=w, bias=bias, segment_ids=ids, activation="silu"
    )
    y, pullback = jax.vjp(lambda x: run(x), x)
    (dx,) = pullback(jnp.ones_like(y))
    for a in (y, dx):
        assert np.isfinite(a[:, :4]).all() and np.isfinite(a[:, 8:]).all()


@pytest.mark.parametrize("length", [5, 8, 11])
def test_what_is_not_finite_reaches_its_own_taps_alone(platform, length):
    """dw of the last input is infinite, and of those before it are numbers."""
    x = jnp.ones((1, length, 8)).at[:, -1].set(jnp.inf)
    w = jnp.ones((4, 8))
    dw = jax.grad(lambda w: jc.causal_conv1d(x, w)[:, :-1].sum())(w)
    want = [length - 4, length - 3, length - 2, length - 1]
    np.testing.assert_array_equal(dw[:, 0] == np.array(want), [True] * 3 + [False])
    dw = jax.grad(lambda w: jc.causal_conv1d(x[:, :-1], w).sum())(w)
    np.testing.assert_array_equal(dw[:, 0], want)


def test_ids_of_64_bits_are_not_cut(x64):
    ids = np.array([[0, 0, 2**32, 2**32]])
    y = jc.causal_conv1d(jnp.ones((1, 4, 1)), jnp.ones((3, 1)), segment_ids=ids)
    np.testing.assert_array_equal(y[0, :, 0], [1, 2, 1, 2])
    for dtype in ("int8", "uint8", "uint32"):
        ids = np.array([[0, 0, 127, 127]], dtype)
        y = jc.causal_conv1d(jnp.ones((1, 4, 1)), jnp.ones((3, 1)), segment_ids=ids)
        np.testing.assert_array_equal(y[0, :, 0], [1, 2, 1, 2])


def test_empty_arrays(platform):
    for n, length, channels in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
        x, w = jnp.zeros((n, length, channels)), jnp.ones((3, channels))
        y, state = jc.causal_conv1d(x, w, return_final_state=True)
        assert y.shape == x.shape and state.shape == (n, 2, channels)
        dx, dw = jax.grad(lambda *a: jc.causal_conv1d(*a).sum(), (0, 1))(x, w)
        assert dx.shape == x.shape
        np.testing.assert_array_equal(dw, 0 * w)
        (row,) = jc.explain(jc.causal_conv1d, x, w, platform=platform)
        assert row.engine == "xla" and "empty" in row.reason


def test_the_kernels_run_where_there_are_any(platform):
    (x, w, bias), more = arrays_of((2, 40, 16, 4, 1), "bfloat16")
    loss = lambda *a: jc.causal_conv1d(*a, activation="silu", **more).sum()  # noqa: E731
    rows = jc.explain(jax.grad(loss, (0, 1, 2)), x, w, bias, platform=platform)
    if targets.available(platform):
        assert [row.engine for row in rows] == ["kernel"], rows
    assert rows[-1].op == "causal_conv1d_cotangent"
    text = jax.jit(jax.grad(loss)).lower(x, w, bias).as_text(debug_info=True)
    assert "causal_conv1d_grad 4 16 bf16 silu" in text
