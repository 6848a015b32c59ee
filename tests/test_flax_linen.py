# SPDX-License-Identifier: Apache-2.0
"""The linen layers are Flax's: parameters, values, gradients, checkpoints."""

import subprocess
import sys
from functools import partial

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax_cases import (
    CONV,
    CONV_TRANSPOSE,
    assert_native,
    assert_same_trees,
    digits,
    gradients,
    inputs,
    layer_ops,
)
from oracle import assert_within_bound, float64

import jax_convbatch
from jax_convbatch.flax import linen

KEY = jax.random.key(0)


def parameters(layer, x):
    return digits(jax.eval_shape(layer.init, KEY, x))


def assert_same_layers(theirs, shape, layers):
    """Each of `layers`, native in the operations named with it, is `theirs`."""
    x = inputs(shape)
    empty = jax.eval_shape(theirs.init, KEY, x)
    variables = digits(empty)
    expected = gradients(theirs.apply, variables, x)
    for layer, ops in layers:
        assert jax.eval_shape(layer.init, KEY, x) == empty
        assert_same_trees(gradients(layer.apply, variables, x), expected)
        assert_native(partial(gradients, layer.apply), variables, x, ops=ops)


@pytest.mark.parametrize(("shape", "settings"), CONV)
def test_conv_and_flax_conv_with_our_function(shape, settings):
    hooked = dict(conv_general_dilated=jax_convbatch.conv_general_dilated, **settings)
    assert_same_layers(
        nn.Conv(2, **settings),
        shape,
        [
            (linen.Conv(2, **settings), layer_ops(settings)),
            (nn.Conv(2, **hooked), ["fprop", "dgrad", "wgrad"]),
        ],
    )


@pytest.mark.parametrize(("shape", "settings"), CONV_TRANSPOSE)
def test_conv_transpose(shape, settings):
    theirs = nn.ConvTranspose(2, **settings)
    ours = linen.ConvTranspose(2, **settings)
    assert_same_layers(theirs, shape, [(ours, layer_ops(settings))])


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_the_same_key_gives_the_same_parameters(name):
    settings = dict(bias_init=nn.initializers.normal(), param_dtype=jnp.float16)
    x = inputs((1, 5, 5, 3))
    theirs = getattr(nn, name)(2, (3, 3), **settings).init(KEY, x)
    ours = getattr(linen, name)(2, (3, 3), **settings).init(KEY, x)
    assert_same_trees(ours, theirs)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_real_numbers_stay_within_the_bound(name, x64):
    settings = dict(features=4, kernel_size=(3, 3), strides=(2, 2))
    theirs = getattr(nn, name)(**settings, dtype="float64")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 8, 5), "float32")
    variables = jax.tree.map(
        lambda a: rng.standard_normal(a.shape, "float32"),
        jax.eval_shape(theirs.init, KEY, x),
    )
    magnitude = theirs.apply(*jax.tree.map(jnp.abs, (variables, x)))
    assert_within_bound(
        getattr(linen, name)(**settings).apply(variables, x),
        float64(theirs.apply(variables, x)),
        float64(magnitude),
        terms=3 * 3 * 5 + 1,
    )


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_activation(name, activation):
    theirs = getattr(nn, name)(2, (3, 3))
    ours = getattr(linen, name)(2, (3, 3), activation=activation)
    x = inputs((2, 5, 5, 3))
    variables = parameters(theirs, x)
    z, pull = jax.vjp(theirs.apply, variables, x)
    y = getattr(jax.nn, activation)(z)
    ulps = 0 if activation == "relu" else 4e-6
    np.testing.assert_allclose(ours.apply(variables, x), y, rtol=ulps, atol=ulps)
    if activation == "relu":  # whose derivatives are integers too
        expected = y, pull(digits(y, seed=2) * (z > 0))
        assert_same_trees(gradients(ours.apply, variables, x), expected)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_forward_mode(name):
    x = inputs((2, 5, 5, 3))
    theirs = getattr(nn, name)(2, (3, 3))
    variables = parameters(theirs, x)
    args = (variables, x), digits((variables, x), seed=3)
    mine = getattr(linen, name)(2, (3, 3))
    assert_same_trees(jax.jvp(mine.apply, *args), jax.jvp(theirs.apply, *args))


@pytest.mark.parametrize(
    "argument", ["conv_general_dilated", "conv_general_dilated_cls"]
)
def test_a_function_given_is_the_one_that_runs(argument):
    calls = []

    def theirs(*args, **kwargs):
        calls.append(kwargs)
        return jax.lax.conv_general_dilated(*args, **kwargs)

    given = theirs if argument == "conv_general_dilated" else lambda: theirs
    layer = linen.Conv(2, (3, 3), activation="relu", **{argument: given})
    x = inputs((2, 5, 5, 3))
    variables = parameters(layer, x)
    calls.clear()
    expected = nn.relu(nn.Conv(2, (3, 3)).apply(variables, x))
    assert_same_trees(layer.apply(variables, x), expected)
    assert len(calls) == 1


def test_options_reach_the_convolution():
    x = inputs((4, 8, 8, 3))
    layer = linen.Conv(2, (3, 3), precision="highest")
    variables = parameters(layer, x)
    assert "HIGHEST" in str(jax.make_jaxpr(layer.apply)(variables, x))
    for settings in (
        dict(algorithm="per_sample"),
        dict(algorithm="im2col_gemm", workspace_limit=2 * 8 * 8 * 9 * 3 * 4 + 512),
    ):
        layer = linen.Conv(2, (3, 3), **settings)
        (row,) = jax_convbatch.explain(layer.apply, variables, x)
        assert row.engine == settings["algorithm"]
        assert 1 <= row.slice < 4
    with pytest.raises(ValueError, match="workspace_limit"):
        settings["workspace_limit"] = 1
        linen.Conv(2, (3, 3), **settings).apply(variables, x)


def test_a_bias_wider_than_the_result_widens_it_as_in_flax():
    def promote(inputs, kernel, bias, dtype):
        return inputs.astype(dtype), kernel.astype(dtype), bias

    settings = dict(kernel_size=(3, 3), dtype=jnp.bfloat16, promote_dtype=promote)
    theirs, ours = nn.Conv(2, **settings), linen.Conv(2, **settings)
    x = inputs((2, 5, 5, 3))
    variables = parameters(theirs, x)
    expected = theirs.apply(variables, x)
    assert expected.dtype == jnp.float32
    assert_same_trees(ours.apply(variables, x), expected)


def test_four_spatial_axes_run_in_jax_lax():
    x = inputs((1, 3, 2, 3, 2, 1))
    theirs, ours = nn.Conv(2, (2, 2, 2, 2)), linen.Conv(2, (2, 2, 2, 2))
    variables = parameters(theirs, x)
    assert_same_trees(ours.apply(variables, x), theirs.apply(variables, x))
    (row,) = jax_convbatch.explain(ours.apply, variables, x)
    assert row.engine == "xla"


class Net(nn.Module):
    """Names itself what its layers make of it: Conv_0, ConvTranspose_0."""

    layers: object

    @nn.compact
    def __call__(self, x):
        x = nn.relu(self.layers.Conv(3, (3, 3), strides=2)(x))
        return self.layers.ConvTranspose(1, (2, 2), strides=(2, 2))(x)


def test_a_checkpoint_of_flax_layers_loads():
    x = inputs((2, 6, 6, 1))
    variables = parameters(Net(nn), x)
    checkpoint = flax.serialization.to_bytes(variables)
    blank = jax.tree.map(jnp.zeros_like, variables)
    loaded = flax.serialization.from_bytes(blank, checkpoint)
    assert_same_trees(loaded, variables)
    assert_same_trees(Net(linen).apply(loaded, x), Net(nn).apply(variables, x))


def test_a_jitted_training_step_is_that_of_flax_layers():
    x, target = inputs((2, 6, 6, 1)), inputs((2, 6, 6, 1), seed=4)
    optimizer = optax.sgd(2.0**-4)

    def step(model, params):
        def loss(params):
            return jnp.sum((model.apply(params, x) - target) ** 2) / 2

        value, grads = jax.value_and_grad(loss)(params)
        updates, _ = optimizer.update(grads, optimizer.init(params))
        return value, optax.apply_updates(params, updates)

    params = parameters(Net(nn), x)
    theirs = jax.jit(lambda p: step(Net(nn), p))(params)
    ours = jax.jit(lambda p: step(Net(linen), p))(params)
    assert_same_trees(ours, theirs)
    assert jax.tree.leaves(ours[1])[0].any()
    ops = layer_ops({}) * 2
    ops.remove("dgrad")  # nobody asks for the input's gradient
    assert_native(lambda p: step(Net(linen), p), params, ops=ops)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (dict(activation="rleu"), ValueError, "unknown activation 'rleu'.*'relu'"),
        (dict(activation=7), TypeError, "activation must be .*'relu'"),
        (dict(padding="SAMME"), (ValueError, RuntimeError), "(?i)padding"),
        (dict(padding=(1, 2, 3)), ValueError, "padding must be"),
        (dict(padding="CAUSAL"), ValueError, "only implemented for 1D"),
        (dict(strides=(1, 2, 1)), ValueError, "strides must be an int or 2 ints"),
        (dict(mask=np.ones((3, 3))), ValueError, r"same shape as weights.*\(3, 3\)"),
        (dict(feature_group_count=5), ValueError, "must divide the 3 features"),
        (dict(algorithm="winograd"), ValueError, "winograd"),
    ],
)
def test_bad_settings(settings, error, message):
    with pytest.raises(error, match=message):
        parameters(linen.Conv(2, (3, 3), **settings), inputs((2, 5, 5, 3)))


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_too_few_axes(name):
    with pytest.raises(ValueError, match=r"2 spatial axes .* got shape \(5, 3\)"):
        parameters(getattr(linen, name)(2, (3, 3)), inputs((5, 3)))


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )


def test_flax_is_imported_only_on_request_and_then_needed():
    result = run_python(
        "import sys, jax_convbatch\n"
        "print('flax' in sys.modules)\n"
        "sys.modules['flax'] = None\n"
        "import jax_convbatch.flax"
    )
    assert result.stdout.strip() == "False"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: jax_convbatch.flax needs Flax")
    assert "pip install 'jax_convbatch[flax]'" in last


class StockBlock(nn.Module):
    """ConvBlock in Flax's layers."""

    strides: int
    frozen: bool
    dtype: str

    @nn.compact
    def __call__(self, x, residual=None):
        options = dict(use_bias=False, dtype=self.dtype, name="conv")
        y = nn.Conv(8, (3, 3), self.strides, **options)(x)
        y = nn.BatchNorm(
            self.frozen, momentum=0.9, epsilon=1e-5, dtype=self.dtype, name="norm"
        )(y)
        return nn.relu(y if residual is None else y + residual)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_block_is_that_of_flax(frozen, with_residual, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 9, 9, 5)).astype(dtype)
    residual = rng.standard_normal((4, 5, 5, 8)).astype(dtype)
    extra = (residual,) if with_residual else ()
    ours = linen.ConvBlock(8, (3, 3), 2, use_running_average=frozen, dtype=dtype)
    theirs = StockBlock(2, frozen, dtype)
    variables = theirs.init(jax.random.key(0), x, *extra)
    assert_same_trees(ours.init(jax.random.key(0), x, *extra), variables)
    variables = jax.tree.map(
        lambda a: a + 0.3 * rng.random(a.shape, np.float32), variables
    )

    def step(block, variables, x):
        y, updated = block.apply(variables, x, *extra, mutable=["batch_stats"])
        return y, updated

    got, want = (jax.jit(partial(step, b))(variables, x) for b in (ours, theirs))
    tolerance = 1e-5 if dtype == "float32" else 0.04
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.float32(a), np.float32(b), rtol=tolerance, atol=tolerance
        )
    rows = (
        jax_convbatch.explain(lambda v, x: ours.apply(v, x, *extra), variables, x)
        if frozen
        else ()
    )
    for row in rows:
        residual_too = ", residual" if with_residual else ""
        assert f"scale, bias{residual_too}, relu in" in row.reason


def test_a_block_of_another_convolution_fuses_nothing():
    x = np.ones((1, 4, 4, 2), np.float32)
    block = linen.ConvBlock(3, (1, 1), use_running_average=True, conv=nn.Conv)
    mine = linen.ConvBlock(3, (1, 1), use_running_average=True)
    variables = block.init(jax.random.key(0), x)
    rows = jax_convbatch.explain(block.apply, variables, x)
    assert [row.engine for row in rows] == ["xla"]
    np.testing.assert_allclose(
        mine.apply(variables, x), block.apply(variables, x), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_a_block_may_have_groups(frozen):
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 4)).astype("float32")
    ours, theirs = (
        linen.ConvBlock(
            4,
            (3, 3),
            use_running_average=frozen,
            conv=partial(conv, feature_group_count=4),
        )
        for conv in (linen.Conv, nn.Conv)
    )
    variables = theirs.init(KEY, x)
    assert_same_trees(ours.init(KEY, x), variables)
    got, want = (
        block.apply(variables, x, mutable=["batch_stats"])[0]
        for block in (ours, theirs)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
