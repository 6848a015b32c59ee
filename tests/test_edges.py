# SPDX-License-Identifier: Apache-2.0
"""Padding CAUSAL, CIRCULAR, REFLECT and EDGE: sums over x as it goes on, in every order
of axes, with gradients. test_axis_padding.py has one name for each axis."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.test_util import check_grads
from problems import FLOATS, whole
from test_errors import shaped

import jax_convbatch as jc
from jax_convbatch import ops

MODES = {"CIRCULAR": "wrap", "WRAP": "wrap", "REFLECT": "reflect", "EDGE": "edge"}
CASES = {
    "one axis": ((2, 9, 3), (4, 3, 5), {}),
    "even taps": ((2, 7, 6, 4), (4, 2, 4, 6), dict(strides=(2, 1))),
    "dilated": ((2, 9, 8, 4), (3, 2, 4, 6), dict(dilation=(2, 3))),
    "groups": ((2, 7, 6, 4), (3, 3, 2, 6), dict(groups=2)),
    "three axes": ((1, 4, 5, 6, 2), (3, 2, 3, 2, 4), {}),
    "channels first": (
        (2, 4, 7, 6),
        (6, 4, 3, 5),
        dict(dimension_numbers=("NCHW", "OIHW", "NCHW")),
    ),
}


def arrays_of(case, dtype="float32"):
    x, w, options = CASES[case]
    return *(jnp.asarray(whole(i, s, dtype, 2)) for i, s in enumerate((x, w))), options


def extended(x, w, mode, options):
    """x as numpy makes it go on, so that stride 1 has as many outputs as x pixels."""
    first = "dimension_numbers" in options
    axes = range(2, x.ndim) if first else range(1, x.ndim - 1)
    taps = w.shape[2:] if first else w.shape[:-2]
    dilation = options.get("dilation", (1,) * len(taps))
    pads = [(0, 0)] * x.ndim
    for axis, t, d in zip(axes, taps, dilation, strict=True):
        reach = (t - 1) * d
        pads[axis] = (reach // 2, reach - reach // 2)
    return np.pad(np.asarray(x), pads, mode=mode)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padding", MODES)
@pytest.mark.parametrize("algorithm", ["auto", "xla"])
def test_x_goes_on(case, padding, algorithm):
    x, w, options = arrays_of(case)
    got = jc.conv(x, w, padding=padding, algorithm=algorithm, **options)
    longer = extended(x, w, MODES[padding], options)
    want = jc.conv(longer, w, padding="VALID", algorithm="xla", **options)
    np.testing.assert_array_equal(got, want)
    if "strides" not in options:
        assert got.size == jc.conv(x, w, **options).size


def test_every_output_is_a_sum_over_a_ring(x64):
    x, w = (whole(i, s, "float64", 3) for i, s in enumerate(((1, 5, 2), (3, 2, 4))))
    got = jc.conv(x, w, padding="CIRCULAR")
    for p in range(5):
        want = sum(x[0, (p + t - 1) % 5] @ w[t] for t in range(3))
        np.testing.assert_array_equal(got[0, p], want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_causal_outputs_see_no_later_input(x64, dtype, dilation):
    x, w = (
        jnp.asarray(whole(i, s, dtype, 2)) for i, s in enumerate(((2, 9, 3), (3, 3, 5)))
    )
    causal = functools.partial(jc.conv, padding="CAUSAL", dilation=dilation)
    y = causal(x, w)
    how = oracle.Conv((1,), ((2 * dilation, 0),), (1,), (dilation,))
    want = oracle.fprop(oracle.float64(x), oracle.float64(w), how)
    np.testing.assert_array_equal(oracle.float64(y), want)
    for p in range(9):
        later = x.at[:, p + 1 :].set(7)
        np.testing.assert_array_equal(causal(later, w)[:, : p + 1], y[:, : p + 1])
        assert (causal(x.at[:, p].add(1), w) != y)[:, p].any()


@pytest.mark.parametrize("padding", ["CAUSAL", *MODES])
def test_gradients_agree_with_finite_differences(x64, padding):
    x, w, _ = arrays_of("one axis", "float64")
    layer = functools.partial(jc.conv_bias_act, padding=padding, activation="tanh")
    check = functools.partial(check_grads, order=2, eps=1e-5)
    check(layer, (x / 4, w / 4, jnp.ones(5)), modes=("fwd", "rev"), rtol=1e-5)


@pytest.mark.parametrize("padding", ["circular", "Causal", "edge", "Wrap"])
def test_case_does_not_matter(padding):
    x, w, _ = arrays_of("one axis")
    got = jc.conv(x, w, padding=padding)
    np.testing.assert_array_equal(got, jc.conv(x, w, padding=padding.upper()))


@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize("strides", [1, (1, 2), 3])
def test_conv_transpose_is_the_periodic_sum_of_valid(strides, transpose_kernel):
    x, w = (
        whole(i, s, "float32", 2) for i, s in enumerate(((2, 4, 3, 4), (4, 3, 4, 4)))
    )
    run = functools.partial(
        jc.conv_transpose, strides=strides, transpose_kernel=transpose_kernel
    )
    got = run(x, w, padding="CIRCULAR")
    np.testing.assert_array_equal(got, run(x, w, padding="WRAP"))
    whole_sum = np.asarray(run(x, w, padding="VALID"))
    sizes = [n * s for n, s in zip((4, 3), np.broadcast_to(strides, 2), strict=True)]
    assert got.shape == (2, *sizes, 4)
    folded = np.zeros((2, *sizes, 4), "float32")
    for p, q in np.ndindex(whole_sum.shape[1:3]):
        folded[:, p % sizes[0], q % sizes[1]] += whole_sum[:, p, q]
    shifts = np.ndindex(*sizes)
    assert any(np.array_equal(np.roll(folded, s, (1, 2)), got) for s in shifts)
    first = run(
        x.transpose(0, 3, 1, 2),
        w,
        padding="CIRCULAR",
        dimension_numbers=("NCHW", "HWIO", "NCHW"),
    )
    np.testing.assert_array_equal(first.transpose(0, 2, 3, 1), got)


def test_what_is_refused():
    image, filters = shaped(2, 8, 8, 4), shaped(3, 3, 4, 6)

    def refused(message, function, **options):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(functools.partial(function, **options), image, filters)

    message = r"'CAUSAL' is only .* 1D .* 2 spatial axes; .*\('CAUSAL', 'SAME'\) is"
    refused(message, jc.conv, padding="CAUSAL")
    choices = (
        "'SAME_LOWER', 'VALID', 'CAUSAL', 'CIRCULAR', 'WRAP', 'REFLECT', 'EDGE', an"
    )
    refused(choices, jc.conv_bias_act, padding="FULL")
    refused(
        "'SAME', 'VALID', 'CIRCULAR', 'WRAP', an", jc.conv_transpose, padding="CAUSAL"
    )
    # The gradient of what x goes on with is not one operation.
    refused("'SAME', 'SAME_LOWER', 'VALID', an int", ops.fprop, padding="CIRCULAR")
    wrong = shaped(3, 3, 5, 6)
    with pytest.raises(ValueError, match=r"x \(2, 8, 8, 4\) has its channels"):
        jax.eval_shape(functools.partial(jc.conv, padding="CIRCULAR"), image, wrong)
