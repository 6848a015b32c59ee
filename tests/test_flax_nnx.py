# SPDX-License-Identifier: Apache-2.0
"""The nnx layers are Flax's: parameters, values, gradients, checkpoints."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
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
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_convbatch
from jax_convbatch.flax import linen
from jax_convbatch.flax import nnx as ours


@pytest.mark.parametrize("jit", [nnx.jit, lambda step: step], ids=["jit", "plain"])
def test_explain_shows_what_a_step_changes_in_place(jit):
    model = ours.Conv(3, 8, (3, 3), rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    x = jnp.ones((2, 8, 8, 3))

    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)
        return loss

    rows = jax_convbatch.explain(jit(step), model, optimizer, x)
    assert [row.op for row in rows] == ["fprop", "bgrad", "wgrad"]
    kept = jax.tree.leaves(nnx.state(model))
    assert len(kept) == 2 and not any(isinstance(a, jax.core.Tracer) for a in kept)


def make(cls, shape, settings):
    """A layer for inputs of this shape, with two features and parameters 0."""

    def zeros(key, shape, dtype):
        return jnp.zeros(shape, dtype)

    return cls(
        shape[-1], 2, kernel_init=zeros, bias_init=zeros, rngs=nnx.Rngs(0), **settings
    )


def split(layer):
    """The layer as a function of its parameters and inputs, and parameters for it."""
    graph, state = nnx.split(layer)
    return lambda state, x: nnx.merge(graph, state)(x), digits(state)


def assert_same_layers(theirs, shape, layers):
    """Each of `layers`, native in the operations named with it, is `theirs`."""
    x = inputs(shape)
    call, parameters = split(theirs)
    expected = gradients(call, parameters, x)
    for layer, ops in layers:
        call, mine = split(layer)
        assert_same_trees(mine, parameters)
        assert_same_trees(gradients(call, parameters, x), expected)
        assert_native(partial(gradients, call), parameters, x, ops=ops)


WIDER = pytest.param(
    (2, 5, 5, 3),
    dict(kernel_size=(3, 3), dtype=jnp.bfloat16, preferred_element_type=jnp.float32),
    id="preferred_element_type",
)


@pytest.mark.parametrize(("shape", "settings"), [*CONV, WIDER])
def test_conv_and_flax_conv_with_our_function(shape, settings):
    hooked = dict(conv_general_dilated=jax_convbatch.conv_general_dilated, **settings)
    assert_same_layers(
        make(nnx.Conv, shape, settings),
        shape,
        [
            (make(ours.Conv, shape, settings), layer_ops(settings)),
            (make(nnx.Conv, shape, hooked), ["fprop", "dgrad", "wgrad"]),
        ],
    )


@pytest.mark.parametrize(("shape", "settings"), CONV_TRANSPOSE)
def test_conv_transpose(shape, settings):
    layer = make(ours.ConvTranspose, shape, settings)
    assert_same_layers(
        make(nnx.ConvTranspose, shape, settings), shape, [(layer, layer_ops(settings))]
    )


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_the_same_key_gives_the_same_parameters(name):
    settings = dict(
        bias_init=nnx.initializers.normal(),
        param_dtype=jnp.float16,
        kernel_metadata={"note": "kept"},
    )
    theirs, mine = (
        getattr(module, name)(3, 2, (3, 3), **settings, rngs=nnx.Rngs(0))
        for module in (nnx, ours)
    )
    assert_same_trees(nnx.state(mine), nnx.state(theirs))
    assert mine.kernel.note == "kept"


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_activation(name, activation):
    shape, settings = (2, 5, 5, 3), dict(kernel_size=(3, 3))
    x = inputs(shape)
    theirs, parameters = split(make(getattr(nnx, name), shape, settings))
    settings["activation"] = activation
    mine, _ = split(make(getattr(ours, name), shape, settings))
    z, pull = jax.vjp(theirs, parameters, x)
    y = getattr(jax.nn, activation)(z)
    ulps = 0 if activation == "relu" else 4e-6
    np.testing.assert_allclose(mine(parameters, x), y, rtol=ulps, atol=ulps)
    if activation == "relu":  # whose derivatives are integers too
        expected = y, pull(digits(y, seed=2) * (z > 0))
        assert_same_trees(gradients(mine, parameters, x), expected)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_forward_mode(name):
    shape, settings = (2, 5, 5, 3), dict(kernel_size=(3, 3))
    theirs, parameters = split(make(getattr(nnx, name), shape, settings))
    mine, _ = split(make(getattr(ours, name), shape, settings))
    args = (parameters, inputs(shape))
    args = args, digits(args, seed=3)
    assert_same_trees(jax.jvp(mine, *args), jax.jvp(theirs, *args))


@pytest.mark.parametrize("out_sharding", [None, "given"])
def test_a_function_given_is_the_one_that_runs(out_sharding):
    calls = []

    def theirs(*args, **kwargs):
        calls.append(kwargs.pop("out_sharding"))
        return jax.lax.conv_general_dilated(*args, **kwargs)

    shape, settings = (2, 5, 5, 3), dict(kernel_size=(3, 3))
    layer = make(
        ours.Conv,
        shape,
        dict(conv_general_dilated=theirs, activation="relu", **settings),
    )
    x = inputs(shape)
    call, parameters = split(make(nnx.Conv, shape, settings))
    nnx.update(layer, parameters)
    assert_same_trees(layer(x, out_sharding), nnx.relu(call(parameters, x)))
    assert calls == [out_sharding]


def test_out_sharding():
    shape, settings = (4, 5, 5, 3), dict(kernel_size=(3, 3), padding=((1, 1), (0, 0)))
    theirs, parameters = split(make(nnx.Conv, shape, settings))
    expected = nnx.relu(theirs(parameters, inputs(shape)))
    layer = make(ours.Conv, shape, dict(activation="relu", **settings))
    nnx.update(layer, parameters)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(inputs(shape), P("data"))
        assert jax.typeof(layer(x)).sharding.spec[0] == "data"
        y = jax.jit(lambda x: layer(x, out_sharding=P("data")))(x)
        assert jax.typeof(y).sharding.spec[0] == "data"
    assert_same_trees(jax.device_get(y), jax.device_get(expected))


class Net(nnx.Module):
    def __init__(self, layers):
        rngs = nnx.Rngs(0)
        self.down = layers.Conv(1, 3, (3, 3), strides=2, rngs=rngs)
        self.up = layers.ConvTranspose(3, 1, (2, 2), strides=2, rngs=rngs)

    def __call__(self, x):
        return self.up(nnx.relu(self.down(x)))


def test_a_checkpoint_of_flax_layers_loads():
    theirs, mine = Net(nnx), Net(ours)
    checkpoint = jax.tree.map(np.asarray, nnx.to_pure_dict(digits(nnx.state(theirs))))
    for model in (theirs, mine):
        state = nnx.state(model)
        nnx.replace_by_pure_dict(state, checkpoint)
        nnx.update(model, state)
    x = inputs((2, 6, 6, 1))
    assert_same_trees(nnx.to_pure_dict(nnx.state(mine)), checkpoint)
    assert_same_trees(mine(x), theirs(x))


def test_a_jitted_training_step_is_that_of_flax_layers():
    x, target = inputs((2, 6, 6, 1)), inputs((2, 6, 6, 1), seed=4)

    def loss(model):
        return jnp.sum((model(x) - target) ** 2) / 2

    def step(model, optimizer):
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    results = []
    for model in (Net(nnx), Net(ours)):
        start = digits(nnx.state(model))
        nnx.update(model, start)
        optimizer = nnx.Optimizer(model, optax.sgd(2.0**-4), wrt=nnx.Param)
        value = nnx.jit(step)(model, optimizer)
        results.append((value, nnx.to_pure_dict(nnx.state(model))))
    assert_same_trees(results[1], results[0])
    assert (model.down.kernel[...] != start["down"]["kernel"][...]).any()
    graph, state = nnx.split(Net(ours))
    grad = jax.grad(lambda state: loss(nnx.merge(graph, state)))
    ops = layer_ops({}) * 2
    ops.remove("dgrad")  # nobody asks for the input's gradient
    assert_native(grad, state, ops=ops)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_an_unknown_activation_is_refused_when_the_layer_is_made(name):
    with pytest.raises(ValueError, match=r"unknown activation 'rleu'.*'relu'"):
        getattr(ours, name)(3, 2, (3, 3), activation="rleu", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (dict(padding=(1, 2, 3)), (2, 5, 5, 3), "padding must be"),
        (dict(strides=(1, 2, 1)), (2, 5, 5, 3), "strides must be an int or 2 ints"),
        (dict(mask=np.ones((3, 3))), (2, 5, 5, 3), r"same shape as weights.*\(3, 3\)"),
        (dict(algorithm="winograd"), (2, 5, 5, 3), "winograd"),
        (
            dict(algorithm="im2col_gemm", workspace_limit=1),
            (2, 5, 5, 3),
            "workspace_limit",
        ),
        (dict(), (5, 3), r"2 spatial axes .* got shape \(5, 3\)"),
        (dict(), (2, 5, 5, 4), "w must have 4 input channels"),
    ],
)
def test_bad_settings(name, settings, shape, message):
    layer = make(getattr(ours, name), (3,), dict(kernel_size=(3, 3), **settings))
    with pytest.raises(ValueError, match=message):
        layer(inputs(shape))


# --- ConvBlock ----------------------------------------------------------------


def blocks(dtype, seed=0, **settings):
    """The nnx block, and linen's of the same variables."""
    block = ours.ConvBlock(5, 8, (3, 3), 2, dtype=dtype, rngs=nnx.Rngs(0), **settings)
    graph, state = nnx.split(block)
    rng = np.random.default_rng(seed)
    state = jax.tree.map(lambda a: a + 0.3 * rng.random(a.shape, np.float32), state)
    found = nnx.to_pure_dict(state)
    names = {"conv": ("kernel",), "norm": ("scale", "bias")}
    variables = {
        "params": {part: {n: found[part][n] for n in names[part]} for part in names},
        "batch_stats": {"norm": {n: found["norm"][n] for n in ("mean", "var")}},
    }
    return nnx.merge(graph, state), variables


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_block_is_that_of_linen(frozen, with_residual, dtype):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 9, 9, 5)).astype(dtype)
    extra = (rng.standard_normal((4, 5, 5, 8)).astype(dtype),) if with_residual else ()
    block, variables = blocks(dtype)
    theirs = linen.ConvBlock(8, (3, 3), 2, use_running_average=frozen, dtype=dtype)
    want, updated = theirs.apply(variables, x, *extra, mutable=["batch_stats"])
    if frozen:
        block.eval()
    got = block(x, *extra)
    tolerance = 1e-5 if dtype == "float32" else 0.04
    close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    assert got.dtype == want.dtype
    close(np.float32(got), np.float32(want))
    statistics = updated.get("batch_stats", variables["batch_stats"])["norm"]
    close(block.norm.mean[...], statistics["mean"])
    close(block.norm.var[...], statistics["var"])
    if frozen:
        (row,) = jax_convbatch.explain(lambda x: block(x, *extra), x)
        residual_too = ", residual" if with_residual else ""
        assert f"scale, bias{residual_too}, relu in" in row.reason


def test_a_block_of_another_convolution_fuses_nothing():
    x = inputs((1, 4, 4, 2))
    settings = dict(use_running_average=True, activation="gelu")
    stock, mine = (
        ours.ConvBlock(2, 3, (1, 1), conv=conv, rngs=nnx.Rngs(0), **settings)
        for conv in (nnx.Conv, ours.Conv)
    )
    assert [row.engine for row in jax_convbatch.explain(stock, x)] == ["xla"]
    np.testing.assert_allclose(mine(x), stock(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="unknown activation 'rleu'"):
        ours.ConvBlock(2, 3, (1, 1), activation="rleu", rngs=nnx.Rngs(0))
