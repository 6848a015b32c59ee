# SPDX-License-Identifier: Apache-2.0
"""What a layer adds to a convolution is refused in words that help."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_errors import F32, FILTER, IMAGE, shaped

import jax_convbatch as jc
from jax_convbatch._api.layer import conv_bias_act
from jax_convbatch._layers import activations

LAYERS = {
    "conv": jc.conv,
    "conv_transpose": jc.conv_transpose,
    "conv_bias_act": jc.conv_bias_act,
    "jax.lax": functools.partial(conv_bias_act, algorithm="xla"),
}
each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


@each_layer
@pytest.mark.parametrize("shape", [(), (1,), (4,), (7,), (1, 6), (2, 8, 8, 6)])
def test_a_bias_of_another_shape_is_refused(layer, shape):
    with pytest.raises(ValueError, match=r"bias must have shape \(6,\)") as caught:
        jax.eval_shape(layer, IMAGE, FILTER, shaped(*shape))
    assert f"got {shape}" in str(caught.value)


@each_layer
@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_a_bias_that_is_not_of_floating_numbers_is_refused(layer, dtype):
    with pytest.raises(TypeError, match="result's dtype float32") as caught:
        jax.eval_shape(layer, IMAGE, FILTER, shaped(6, dtype=jnp.dtype(dtype)))
    assert f"got {dtype}" in str(caught.value)


@each_layer
def test_an_activation_in_the_place_of_a_bias_is_told(layer):
    with pytest.raises(TypeError, match="got str; conv_bias_act takes activation='re"):
        jax.eval_shape(lambda x, w: layer(x, w, "relu"), IMAGE, FILTER)
    with pytest.raises(TypeError, match=r"bias must be an array, got str(\n|$)"):
        jax.eval_shape(lambda x, w: layer(x, w, "SAME"), IMAGE, FILTER)


@each_layer
def test_a_bias_that_is_no_array_is_refused(layer):
    with pytest.raises(TypeError, match="bias must be an array, got"):
        jax.eval_shape(lambda x, w: layer(x, w, [0.0] * 6), IMAGE, FILTER)


@each_layer
@pytest.mark.parametrize("bad", [None, 1.0, [[1.0]], {"x": 1.0}])
def test_x_and_w_that_are_no_arrays_are_refused(layer, bad):
    kind = type(bad).__name__
    with pytest.raises(TypeError, match=f"x must be an array, got {kind}"):
        jax.eval_shape(lambda w: layer(bad, w), FILTER)
    with pytest.raises(TypeError, match=f"w must be an array, got {kind}"):
        jax.eval_shape(lambda x: layer(x, bad), IMAGE)


@each_layer
def test_x_without_batch_and_channels_is_refused(layer):
    with pytest.raises(ValueError, match=r"x must be \[N, \*spatial, C\], got shape"):
        jax.eval_shape(layer, shaped(4), FILTER)


@each_layer
@pytest.mark.parametrize("shape", [(3, 4, 6), (1, 3, 3, 4, 6), (6,)])
def test_a_filter_of_other_axes_than_x_has_is_refused(layer, shape):
    with pytest.raises(ValueError, match="as many axes as x, 4, got shape") as caught:
        jax.eval_shape(layer, IMAGE, shaped(*shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("name", ["conv", "conv_bias_act", "jax.lax"])
@pytest.mark.parametrize("groups", [None, "2", 1.0, True, (1,)])
def test_groups_that_are_no_int_are_refused(name, groups):
    with pytest.raises(TypeError, match="groups must be an int, got") as caught:
        jax.eval_shape(functools.partial(LAYERS[name], groups=groups), IMAGE, FILTER)
    assert repr(groups) in str(caught.value)


@each_layer
@pytest.mark.parametrize("name", ["strides", "dilation", "padding"])
@pytest.mark.parametrize("value", [1.5, (1.5, 1), None, jnp.ones(2)])
def test_options_that_are_no_ints_are_refused(layer, name, value):
    if name == "padding" and value is not None and np.ndim(value):
        value = (1.5, 1.5)
    with pytest.raises(TypeError, match=f"{name} must be ") as caught:
        jax.eval_shape(functools.partial(layer, **{name: value}), IMAGE, FILTER)
    assert f"got {value!r}" in str(caught.value)


@each_layer
def test_a_traced_option_is_refused(layer):
    wanted = "strides must be an int or 2 ints.*traced.*'strides' in static_argnames"
    with pytest.raises(TypeError, match=wanted):
        jax.eval_shape(lambda x, w, s: layer(x, w, strides=s), IMAGE, FILTER, 2)
    wanted = "padding must be .*traced value.*'padding' in static_argnames"
    with pytest.raises(TypeError, match=wanted):
        jax.eval_shape(lambda x, w, p: layer(x, w, padding=p), IMAGE, FILTER, (1, 1))


@pytest.mark.parametrize("name", ["conv", "conv_bias_act", "jax.lax"])
def test_a_traced_number_of_groups_is_refused(name):
    def call(x, w, groups):
        return LAYERS[name](x, w, groups=groups)

    with pytest.raises(TypeError, match="'groups' in static_argnames"):
        jax.eval_shape(call, IMAGE, FILTER, 2)


@each_layer
def test_a_sample_without_its_batch_axis_is_refused_with_the_mend(layer):
    one = shaped(*IMAGE.shape[1:])
    with pytest.raises(ValueError, match=r"x\[None\] has a batch axis"):
        jax.eval_shape(layer, one, FILTER)
    assert jax.eval_shape(lambda x, w: layer(x[None], w), one, FILTER).shape[0] == 1
    with pytest.raises(ValueError, match="as many axes as x") as caught:
        jax.eval_shape(layer, IMAGE, shaped(3, 4, 6))
    assert "x[None]" not in str(caught.value)


@each_layer
@pytest.mark.parametrize("name", ["strides", "dilation"])
@pytest.mark.parametrize("value", [0, (1, 0), -1])
def test_steps_that_are_not_positive_are_refused(layer, name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive, got"):
        jax.eval_shape(functools.partial(layer, **{name: value}), IMAGE, FILTER)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("swish", "silu"),
        ("ReLU", "relu"),
        ("rleu", "relu"),
        ("linear", "identity"),
        ("gelu_tanh", "gelu"),
        ("SIGMOID", "sigmoid"),
    ],
)
def test_the_activation_that_was_meant_is_named(wrong, right):
    with pytest.raises(ValueError, match=rf"Did you mean '{right}'\?$"):
        activations.lookup(wrong)


def test_an_activation_like_none_of_them_has_no_hint():
    with pytest.raises(ValueError, match=r"or a function$"):
        activations.lookup("mish")


def test_an_array_in_the_place_of_an_activation_is_named_not_printed():
    with pytest.raises(TypeError, match=r"got an array of shape \(6,\)$"):
        jc.conv_bias_act(
            jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 6)), activation=jnp.zeros(6)
        )


@pytest.mark.parametrize("dtype", [F32, np.int32])
@pytest.mark.parametrize("activation", ["swish!", "", 3, ["relu"]])
def test_an_unknown_activation_is_refused_with_the_choices(activation, dtype):
    x, w = (jax.ShapeDtypeStruct(a.shape, dtype) for a in (IMAGE, FILTER))
    kind = ValueError if isinstance(activation, str) else TypeError
    with pytest.raises(kind, match="activation") as caught:
        jax.eval_shape(functools.partial(jc.conv_bias_act, activation=activation), x, w)
    assert repr(activation) in str(caught.value)
    for name in activations.ACTIVATIONS:
        assert repr(name) in str(caught.value)


RESULT = shaped(*jax.eval_shape(jc.conv, IMAGE, FILTER).shape)


@pytest.mark.parametrize("algorithm", ["auto", "xla"])
def test_a_residual_or_scale_that_does_not_fit_is_refused(algorithm):
    def run(**kwargs):
        names = list(kwargs)

        def layer(x, w, *more):
            given = dict(zip(names, more, strict=True))
            return jc.conv_bias_act(x, w, algorithm=algorithm, **given)

        jax.eval_shape(layer, IMAGE, FILTER, *kwargs.values())

    with pytest.raises(ValueError, match=r"scale must have shape \(6,\).*got \(7,\)"):
        run(scale=shaped(7))
    with pytest.raises(TypeError, match="scale must have the result's dtype float32"):
        run(scale=shaped(6, dtype=np.int32))
    wrong = (RESULT.shape[0] + 1, *RESULT.shape[1:])
    with pytest.raises(ValueError, match="residual must have shape") as caught:
        run(residual=shaped(*wrong))
    assert str(RESULT.shape) in str(caught.value) and str(wrong) in str(caught.value)
    with pytest.raises(TypeError, match="residual must have the result's dtype"):
        run(residual=shaped(*RESULT.shape, dtype=jnp.float16))
    with pytest.raises(TypeError, match="residual must be an array, got list"):
        jax.eval_shape(
            lambda x, w: jc.conv_bias_act(x, w, residual=[1.0], algorithm=algorithm),
            IMAGE,
            FILTER,
        )


BAD_LAYERS = {
    "strides": ({"strides": (1, 1, 1)}, "strides must be an int or 2 ints"),
    "dilation": ({"dilation": (1,)}, "dilation must be an int or 2 ints"),
    "padding of another rank": ({"padding": (1,)}, "each of the 2 spatial axes"),
    "padding of triples": ({"padding": ((1, 1, 1),) * 2}, "each of the 2 spatial axes"),
}


@each_layer
@pytest.mark.parametrize("call", BAD_LAYERS)
def test_numbers_for_other_axes_than_x_has_are_refused(layer, call):
    kwargs, message = BAD_LAYERS[call]
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(functools.partial(layer, **kwargs), IMAGE, FILTER)


@each_layer
def test_a_fourth_spatial_axis_needs_dimension_numbers(layer):
    x, w = shaped(1, 2, 2, 2, 2, 3), shaped(1, 1, 1, 1, 3, 3)
    with pytest.raises(ValueError, match="4 spatial axes; give dimension_numbers"):
        jax.eval_shape(layer, x, w)
