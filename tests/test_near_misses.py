# SPDX-License-Identifier: Apache-2.0
"""A wrong keyword is refused with the right one."""

import functools
import inspect

import jax
import jax.numpy as jnp
import pytest

import jax_convbatch as jc
from jax_convbatch import ops
from jax_convbatch._api.near_misses import _OTHER_NAMES, with_hints

X, W = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 2))
LAYERS = {f.__name__: f for f in (jc.conv, jc.conv_bias_act, jc.conv_transpose)}
FUNCTIONS = LAYERS | {
    f.__name__: f
    for f in (
        *(jc.deform_conv, jc.causal_conv1d, ops.fprop, ops.dgrad, ops.wgrad),
        *(ops.bias_grad, ops.act_bias_grad),
    )
}


def message(function, **keywords):
    with pytest.raises(TypeError) as refused:
        function(X, W, **keywords)
    return str(refused.value)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("stride", "strides"),
        ("window_strides", "strides"),
        ("pad", "padding"),
        ("kernel_dilation", "dilation"),
        ("rhs_dilation", "dilation"),
        ("dialation", "dilation"),
        ("kernel", "w"),
        ("lhs", "x"),
        ("Bias", "bias"),
        ("workspace", "workspace_limit"),
        ("dtype", "preferred_element_type"),
    ],
)
def test_a_near_miss_is_named(name, wrong, right):
    said = message(LAYERS[name], **{wrong: 1})
    assert said.startswith(f"{name}() got an unexpected keyword argument '{wrong}'")
    assert said.endswith(f"did you mean '{right}'?")


@pytest.mark.parametrize("wrong", ["feature_group_count", "group", "num_groups"])
def test_groups_have_many_names(wrong):
    assert "did you mean 'groups'?" in message(jc.conv, **{wrong: 2})
    # Which transposed convolutions do not have.
    assert "'groups'" not in message(jc.conv_transpose, **{wrong: 2})


def test_what_another_function_takes_leads_there():
    for keyword in ("activation", "residual", "scale"):
        said = message(jc.conv, **{keyword: "relu"})
        assert said.endswith(f"conv_bias_act takes '{keyword}'")


def test_what_no_function_takes_is_said_otherwise():
    said = message(jc.conv_transpose, output_padding=1)
    assert "shorten the padding at the end of each axis" in said
    assert "did you mean" not in said


def test_without_a_near_miss_the_arguments_are_listed():
    said = message(jc.conv, qqqq=1)
    assert "its arguments are x, w, bias, strides, padding" in said


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_hints_and_its_signature(name):
    function = FUNCTIONS[name]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword"):
        function(qqqq=1)
    assert "kwargs" not in inspect.signature(function).parameters
    assert function.__doc__ and function.__name__ == name


def test_other_names_are_names_of_arguments():
    arguments = {n for f in FUNCTIONS.values() for n in inspect.signature(f).parameters}
    assert {*_OTHER_NAMES.values()} <= arguments
    assert not arguments & {*_OTHER_NAMES}


def test_errors_from_inside_stay_what_they_are():
    @with_hints()
    def function(x, size=1):
        return missing(x, sizes=size)

    def missing(x):
        return x

    with pytest.raises(TypeError, match=r"missing\(\) got an unexpected"):
        function(1, size=2)


def test_jit_finds_the_static_arguments():
    conv = jax.jit(jc.conv, static_argnames=("strides", "padding"))
    assert conv(X, W, strides=2, padding="VALID").shape == (1, 1, 1, 2)
    with pytest.raises(TypeError, match="did you mean 'strides'"):
        jax.jit(functools.partial(jc.conv, stride=2))(X, W)
