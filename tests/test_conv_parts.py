# SPDX-License-Identifier: Apache-2.0
"""A sequence in parts along the first spatial axis: outputs and gradients of the whole,
and the state that one part leaves to the next."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.test_util import check_grads
from problems import FLOATS, normal, whole
from test_errors import shaped

import jax_convbatch as jc

CASES = {
    "one axis": ((2, 12, 3), (4, 3, 5), dict(padding="CAUSAL")),
    "no state": ((2, 12, 3), (1, 3, 5), dict(padding="CAUSAL")),
    "dilated": ((2, 12, 3), (3, 3, 5), dict(padding="causal", dilation=2)),
    "strides": (
        (2, 12, 7, 3),
        (3, 3, 3, 5),
        dict(padding=("CAUSAL", "SAME"), strides=2),
    ),
    "depthwise": ((2, 12, 4), (4, 1, 4), dict(padding=["CAUSAL"], groups=4)),
    "video": (
        (1, 12, 5, 6, 2),
        (3, 2, 3, 2, 4),
        dict(padding=("CAUSAL", "SAME", "VALID")),
    ),
    "border": (
        (1, 12, 5, 6, 2),
        (3, 2, 3, 2, 4),
        dict(padding=("CAUSAL", "EDGE", ("REFLECT", (1, 2)))),
    ),
    "dilated inputs": (
        (2, 12, 5, 3),
        (3, 3, 3, 5),
        dict(padding=("CAUSAL", 1), input_dilation=(1, 2)),
    ),
}
# The last are shorter than the state.
CUTS = [(6,), (2, 8), (4, 6, 8, 10), (0, 2, 2, 6)]


def arrays_of(case, dtype="float32"):
    x, w, options = CASES[case]
    return *(jnp.asarray(whole(i, s, dtype, 2)) for i, s in enumerate((x, w))), options


def in_parts(x, w, cuts, axis=1, state=None, **options):
    """Outputs of the parts together, and the last state."""
    ys = []
    for first, end in itertools.pairwise((0, *cuts, x.shape[axis])):
        part = jax.lax.slice_in_dim(x, first, end, axis=axis)
        y, state = jc.conv(
            part, w, initial_state=state, return_final_state=True, **options
        )
        ys.append(y)
    return jnp.concatenate(ys, axis), state


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", CUTS)
def test_parts_are_the_whole(case, cuts):
    x, w, options = arrays_of(case)
    y, state = in_parts(x, w, cuts, **options)
    np.testing.assert_array_equal(y, jc.conv(x, w, **options))
    dilation = options.get("dilation", 1)
    rows = (w.shape[0] - 1) * dilation
    np.testing.assert_array_equal(state, x[:, 12 - rows :])


def test_outputs_are_sums_over_the_state_and_x():
    x, w, state = (whole(i, s, "float32") for i, s in enumerate(STATE_SHAPES))
    y = jc.conv(x, w, initial_state=state, padding=("CAUSAL", "SAME"))
    how = oracle.Conv((1, 1), ((0, 0), (1, 1)), (1, 1), (1, 1))
    longer = np.concatenate([state, x], 1)
    np.testing.assert_array_equal(
        y, oracle.fprop(oracle.float64(longer), oracle.float64(w), how)
    )


STATE_SHAPES = ((2, 5, 6, 3), (3, 3, 3, 4), (2, 2, 6, 3))


def test_a_state_of_a_short_part_begins_with_zeros():
    x, w, options = arrays_of("one axis")
    _, state = jc.conv(x[:, :1], w, return_final_state=True, **options)
    np.testing.assert_array_equal(state, np.pad(x[:, :1], ((0, 0), (2, 0), (0, 0))))


@pytest.mark.parametrize("algorithm", ["auto", "xla"])
def test_channels_first(algorithm):
    x, w, options = arrays_of("video")
    first = (0, 4, 1, 2, 3)
    y, state = in_parts(
        x.transpose(first),
        w.transpose(4, 3, 0, 1, 2),
        (4, 6),
        axis=2,
        dimension_numbers=("NCDHW", "OIDHW", "NCDHW"),
        algorithm=algorithm,
        **options,
    )
    np.testing.assert_array_equal(y, jc.conv(x, w, **options).transpose(first))
    np.testing.assert_array_equal(state, x[:, 10:].transpose(first))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", ["one axis", "strides", "video", "border"])
def test_bits_of_parts_on_the_cpu_are_those_of_the_whole(x64, case, dtype):
    shapes, options = CASES[case][:2], CASES[case][2]
    with jax.default_device(jax.devices("cpu")[0]):
        x, w = (jnp.asarray(normal(i, s, dtype)) for i, s in enumerate(shapes))
        y, _ = in_parts(x, w, (2, 8), **options)
        np.testing.assert_array_equal(y, jc.conv(x, w, **options))


@pytest.mark.parametrize("case", ["strides", "video", "border"])
def test_gradients_flow_through_the_state(case):
    x, w, options = arrays_of(case)

    def loss(run, x, w):
        y = run(x, w)
        return jnp.vdot(y, whole(7, y.shape, "float32"))

    grad = functools.partial(jax.grad, argnums=(0, 1))
    want = grad(lambda x, w: loss(functools.partial(jc.conv, **options), x, w))(x, w)
    got = grad(lambda x, w: loss(lambda *a: in_parts(*a, (2, 8), **options)[0], x, w))
    for a, b in zip(got(x, w), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_agree_with_finite_differences(x64):
    x, w, state = (whole(i, s, "float64") / 9 for i, s in enumerate(STATE_SHAPES))

    def layer(x, w, state):
        return jc.conv_bias_act(
            x,
            w,
            activation="tanh",
            initial_state=state,
            return_final_state=True,
            padding=("CAUSAL", "SAME"),
        )

    check_grads(layer, (x, w, state), 2, modes=("fwd", "rev"), rtol=1e-5, eps=1e-5)


def test_a_layer_in_parts():
    x, w, options = arrays_of("strides")
    bias = jnp.arange(5.0)
    layer = functools.partial(jc.conv_bias_act, activation="relu", **options)
    want = layer(x, w, bias, residual=jnp.ones((2, 6, 4, 5)))
    first, state = layer(
        x[:, :4], w, bias, residual=jnp.ones((2, 2, 4, 5)), return_final_state=True
    )
    last = layer(
        x[:, 4:], w, bias, residual=jnp.ones((2, 4, 4, 5)), initial_state=state
    )
    np.testing.assert_array_equal(jnp.concatenate([first, last], 1), want)


def test_scan_and_vmap():
    x, w, options = arrays_of("video")
    want = jc.conv(x, w, **options)

    def step(state, part):
        y, state = jc.conv(
            part, w, initial_state=state, return_final_state=True, **options
        )
        return state, y

    @jax.jit
    def scanned(x):
        parts = jnp.stack(jnp.split(x, 4, 1))
        _, ys = jax.lax.scan(step, jnp.zeros_like(x[:, :2]), parts)
        return jnp.concatenate(list(ys), 1)

    np.testing.assert_array_equal(scanned(x), want)
    twice = jax.vmap(scanned)(jnp.stack([x, 2 * x]))
    np.testing.assert_array_equal(twice, jnp.stack([want, 2 * want]))


def test_x_is_copied_for_a_state_alone():
    x, w, options = arrays_of("video")

    def copies(**more):
        run = functools.partial(jc.conv, **options, **more)
        eqns = jax.make_jaxpr(run)(x, w).eqns
        return sum(e.primitive.name == "concatenate" for e in eqns)

    assert copies() == copies(return_final_state=True) == 0
    assert copies(initial_state=x[:, :2], return_final_state=True) == 1


def test_the_last_part_may_have_any_length():
    x, w, options = arrays_of("strides")
    _, state = jc.conv(x[:, :4], w, return_final_state=True, **options)
    y = jc.conv(x[:, 4:9], w, initial_state=state, **options)
    np.testing.assert_array_equal(y, jc.conv(x[:, :9], w, **options)[:, 2:])


X, W = shaped(2, 8, 9, 4), shaped(3, 3, 4, 6)
CAUSAL = dict(padding=("CAUSAL", "SAME"))
STATE = shaped(2, 2, 9, 4)
NEEDS = "initial_state and return_final_state need "
REFUSED = {
    "not causal": (STATE, {}, f"{NEEDS}padding 'CAUSAL' .* got padding='SAME'"),
    "numbers": (None, dict(padding=((2, 0), 1)), f"{NEEDS}padding 'CAUSAL'"),
    "another axis": (None, dict(padding=("SAME", "CAUSAL")), f"{NEEDS}padding"),
    "dilated inputs": (
        STATE,
        dict(CAUSAL, padding=("CAUSAL", 1), input_dilation=2),
        f"{NEEDS}input_dilation 1 along the first spatial axis, got 2",
    ),
    "too short": (
        shaped(2, 1, 9, 4),
        CAUSAL,
        r"initial_state must have shape \(2, 2, 9, 4\), .* axis 1, got \(2, 1, 9, 4\)",
    ),
    "of a dilated filter": (
        STATE,
        dict(CAUSAL, dilation=2),
        r"must have shape \(2, 4, 9, 4\)",
    ),
    "odd length": (
        STATE,
        dict(CAUSAL, strides=3),
        r"multiple of its stride 3, and x \(2, 8, 9, 4\) has 8 along axis 1",
    ),
}


@pytest.mark.parametrize("function", [jc.conv, jc.conv_bias_act])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(function, case):
    state, options, message = REFUSED[case]

    def run(x, w, state):
        return function(x, w, initial_state=state, return_final_state=True, **options)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run, X, W, state)


def test_states_of_other_types_are_refused():
    run = functools.partial(jc.conv, **CAUSAL)

    def state_of(dtype):
        state = shaped(*STATE.shape, dtype=dtype)
        jax.eval_shape(lambda x, w, s: run(x, w, initial_state=s), X, W, state)

    with pytest.raises(TypeError, match="x's dtype float32, got bfloat16"):
        state_of(jnp.bfloat16)
    with pytest.raises(TypeError, match="initial_state must be an array, got list"):
        jax.eval_shape(lambda x, w: run(x, w, initial_state=[0.0]), X, W)


def test_no_spatial_axis():
    with pytest.raises(ValueError, match="of 0 spatial axes"):
        jc.conv(jnp.ones((2, 3)), jnp.ones((3, 4)), return_final_state=True)
