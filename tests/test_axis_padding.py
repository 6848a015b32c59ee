# SPDX-License-Identifier: Apache-2.0
"""A name of padding for each axis, and names with an amount."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.test_util import check_grads
from problems import whole
from test_errors import shaped

import jax_convbatch as jc
from jax_convbatch import ops

# x, w, padding, options, and what each axis has: a mode of numpy's pad, low and high.
ZEROS = "constant"
CASES = {
    "causal in time": (
        (2, 4, 5, 6, 2),
        (3, 2, 3, 2, 4),
        ("CAUSAL", "SAME", "VALID"),
        {},
        [(ZEROS, 2, 0), (ZEROS, 0, 1), (ZEROS, 0, 0)],
    ),
    "the first frame repeated": (
        (2, 4, 5, 6, 2),
        (3, 2, 3, 2, 4),
        [("EDGE", (2, 0)), "SAME_LOWER", 1],
        {},
        [("edge", 2, 0), (ZEROS, 1, 0), (ZEROS, 1, 1)],
    ),
    "two modes": (
        (2, 7, 6, 4),
        (4, 3, 4, 6),
        ("EDGE", "reflect"),
        {},
        [("edge", 1, 2), ("reflect", 1, 1)],
    ),
    "three modes": (
        (1, 4, 5, 6, 2),
        (3, 2, 3, 2, 4),
        ("WRAP", "EDGE", "REFLECT"),
        {},
        [("wrap", 1, 1), ("edge", 0, 1), ("reflect", 1, 1)],
    ),
    "strides": (
        (2, 7, 10, 3),
        (3, 4, 3, 5),
        ("CAUSAL", "SAME"),
        dict(strides=(2, 3), dilation=(2, 1)),
        [(ZEROS, 4, 0), (ZEROS, 1, 2)],
    ),
    "dilated inputs": (
        (2, 5, 6, 3),
        (3, 3, 3, 5),
        ("CAUSAL", "CIRCULAR"),
        dict(input_dilation=(3, 1)),
        [(ZEROS, 2, 0), ("wrap", 1, 1)],
    ),
    "amounts": (
        (2, 5, 6, 4),
        (3, 3, 2, 6),
        (("REFLECT", (0, 3)), ("wrap", 1)),
        dict(groups=2),
        [("reflect", 0, 3), ("wrap", 1, 1)],
    ),
    "amounts beyond x": (
        (2, 3, 2, 4),
        (3, 3, 4, 6),
        (("REFLECT", (6, 5)), ("CIRCULAR", (7, 0))),
        {},
        [("reflect", 6, 5), ("wrap", 7, 0)],
    ),
    "negative zeros": (
        (2, 7, 6, 4),
        (3, 3, 4, 6),
        ((-1, 2), "EDGE"),
        {},
        [(ZEROS, -1, 2), ("edge", 1, 1)],
    ),
    "one axis": ((2, 7, 4), (3, 4, 6), (("EDGE", (2, 0)),), {}, [("edge", 2, 0)]),
    "no axis": ((2, 4), (4, 6), "EDGE", {}, []),
}


def arrays_of(case, dtype="float32"):
    x, w, *rest = CASES[case]
    return *(jnp.asarray(whole(i, s, dtype, 2)) for i, s in enumerate((x, w))), *rest


def summed(x, w, edges, *, strides=1, dilation=1, input_dilation=1, groups=1):
    """The convolution in numpy's terms."""
    zeros = []
    for axis, (mode, low, high) in enumerate(edges, 1):
        pads = [(0, 0)] * x.ndim
        pads[axis] = (low, high)
        zeros.append((low, high) if mode == ZEROS else (0, 0))
        x = x if mode == ZEROS else np.pad(x, pads, mode=mode)
    strides, apart, dilation = (
        tuple(np.broadcast_to(a, len(edges)))
        for a in (strides, input_dilation, dilation)
    )
    how = oracle.Conv(strides, tuple(zeros), apart, dilation, groups)
    return oracle.fprop(oracle.float64(x), oracle.float64(w), how)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", ["auto", "xla"])
def test_each_axis_has_its_own(case, algorithm):
    x, w, padding, options, edges = arrays_of(case)
    run = functools.partial(jc.conv, padding=padding, algorithm=algorithm, **options)
    want = summed(x, w, edges, **options)
    np.testing.assert_array_equal(run(x, w), want)
    np.testing.assert_array_equal(jax.jit(run)(x, w), want)
    twice = jax.vmap(run, (0, None))(jnp.stack([x, 2 * x]), w)
    np.testing.assert_array_equal(twice, np.stack([want, 2 * want]))


def test_axes_are_counted_as_the_filter_has_them():
    x, w, padding, _, edges = arrays_of("two modes")
    numbers = ("NCWH", "HOWI", "NHWC")
    y = jc.conv(
        x.transpose(0, 3, 2, 1),
        w.transpose(0, 3, 1, 2),
        padding=padding,
        dimension_numbers=numbers,
    )
    np.testing.assert_array_equal(y, summed(x, w, edges))


@pytest.mark.parametrize("name", ["SAME", "SAME_LOWER", "VALID", "REFLECT", "EDGE"])
@pytest.mark.parametrize("strides", [1, (2, 3)])
def test_a_name_on_every_axis_is_that_name_alone(name, strides):
    x, w = (jnp.asarray(whole(i, s, "float32")) for i, s in enumerate(SHAPES))
    run = functools.partial(jc.conv, strides=strides, dilation=(1, 2))
    want = run(x, w, padding=name)
    np.testing.assert_array_equal(run(x, w, padding=(name, name.lower())), want)


SHAPES = ((2, 8, 9, 3), (4, 3, 3, 5))


def primitives_of(function, *arrays):
    jaxpr = jax.make_jaxpr(function)(*arrays)
    return [str(e.primitive) for e in jaxpr.eqns]


@pytest.mark.parametrize("strides", [1, 2])
def test_zeros_are_the_convolutions_own(strides):
    x, w, padding, *_ = arrays_of("causal in time")
    run = functools.partial(jc.conv, padding=padding, strides=strides)
    assert len(primitives_of(run, x, w)) == 1


def test_one_axis_that_goes_on_is_one_pass():
    x, w, padding, *_ = arrays_of("the first frame repeated")
    run = functools.partial(jc.conv, padding=padding)
    assert primitives_of(run, x, w).count("concatenate") == 1


@pytest.mark.parametrize(
    "case", ["two modes", "the first frame repeated", "amounts beyond x"]
)
def test_gradients_agree_with_finite_differences(x64, case):
    x, w, padding, options, _ = arrays_of(case, "float64")
    layer = functools.partial(
        jc.conv_bias_act, padding=padding, activation="tanh", **options
    )
    bias = jnp.ones(w.shape[-1])
    check = functools.partial(check_grads, order=2, eps=1e-5)
    check(layer, (x / 9, w / 9, bias), modes=("fwd", "rev"), rtol=1e-5)


def test_norms_and_flax_layers_take_them():
    linen = pytest.importorskip("jax_convbatch.flax").linen
    x, w, padding, _, edges = arrays_of("two modes")
    want = summed(x, w, edges)
    got = jc.norm_act_conv(x, w, scale=jnp.ones(4), padding=padding)
    np.testing.assert_array_equal(got, want)
    layer = linen.Conv(6, (4, 3), padding=padding, use_bias=False)
    np.testing.assert_array_equal(layer.apply({"params": {"kernel": w}}, x), want)


IMAGE, FILTER = shaped(2, 8, 8, 4), shaped(3, 3, 4, 6)
CHOICES = r"padding must be 'SAME', .* each of the 2 spatial axes .* got "
REFUSED = {
    "unknown": (dict(padding=("SAME", "FULL")), CHOICES),
    "too few": (dict(padding=("CAUSAL",)), CHOICES),
    "too many": (dict(padding=("CAUSAL", "SAME", "SAME")), CHOICES),
    "a name and an amount for all": (dict(padding=(("EDGE", (1, 0)),)), CHOICES),
    "zeros with an amount": (dict(padding=(("CAUSAL", 2), "SAME")), CHOICES),
    "a name for one end": (dict(padding=((1, "SAME"), "SAME")), CHOICES),
    "negative": (dict(padding=(("EDGE", (1, -1)), "SAME")), CHOICES),
    "three amounts": (dict(padding=(("EDGE", (1, 1, 1)), "SAME")), CHOICES),
    "of dilated inputs": (
        dict(padding=(0, "EDGE"), input_dilation=(1, 2)),
        "has 'EDGE' for spatial axis 1, where input_dilation is 2; give a",
    ),
    "SAME of dilated inputs": (
        dict(padding=("SAME", "CAUSAL"), input_dilation=2),
        "has 'SAME' for spatial axis 0, where input_dilation is 2; give a",
    ),
}


@pytest.mark.parametrize("function", [jc.conv, jc.conv_bias_act, jc.norm_act_conv])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(function, case):
    options, message = REFUSED[case]
    if "input_dilation" in options and function is jc.norm_act_conv:
        pytest.skip("it has no such argument")
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(functools.partial(function, **options), IMAGE, FILTER)


@pytest.mark.parametrize("padding", [("SAME", None), (("EDGE", 1.5), 0), ("EDGE", 1.5)])
def test_entries_of_other_types_are_refused(padding):
    with pytest.raises(TypeError, match="padding must be 'SAME'"):
        jax.eval_shape(functools.partial(jc.conv, padding=padding), IMAGE, FILTER)


@pytest.mark.parametrize("name", ["WRAP", "REFLECT", "EDGE"])
def test_an_empty_axis_does_not_go_on(name):
    message = rf"has '{name}' for spatial axis 1, .* not empty; x has .*\(2, 8, 0, 4\)"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            functools.partial(jc.conv, padding=name), shaped(2, 8, 0, 4), FILTER
        )
    run = functools.partial(jc.conv, padding=(name, (name, 0)))
    assert jax.eval_shape(run, shaped(2, 8, 0, 4), FILTER).shape == (2, 8, 0, 6)


@pytest.mark.parametrize("padding", [("CAUSAL", "SAME"), (("EDGE", 1), 0), "EDGE"])
def test_other_functions_refuse_them(padding):
    deform = functools.partial(jc.deform_conv, w=FILTER)
    for function, arrays in (
        (ops.fprop, (IMAGE, FILTER)),
        (jc.conv_transpose, (IMAGE, FILTER)),
        (deform, (IMAGE, shaped(2, 8, 8, 18))),
    ):
        with pytest.raises((ValueError, TypeError), match="padding must be 'SAME'"):
            jax.eval_shape(functools.partial(function, padding=padding), *arrays)
