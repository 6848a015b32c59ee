# SPDX-License-Identifier: Apache-2.0
"""The layers `CausalConv1D`: Flax's depthwise `Conv`, and their cache for decoding.

Numbers of `digits` make sums exact, so values are Flax's to the bit.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.serialization import from_bytes, to_bytes
from flax_cases import (
    assert_native,
    assert_same_trees,
    digits,
    gradients,
    inputs,
)
from problems import normal

from jax_convbatch.flax import linen as jlinen
from jax_convbatch.flax import nnx as jnnx

KEY = jax.random.key(0)
C = 5


def case(name, shape=(2, 7, C), taps=4, **settings):
    return pytest.param(shape, taps, settings, id=name)


CASES = [
    case("defaults"),
    case("one_tap", taps=1),
    case("a_tuple", taps=(3,), kernel_dilation=None),
    case("dilated", shape=(2, 11, C), taps=3, kernel_dilation=(2,)),
    case("no_bias", use_bias=False),
    case("shorter_than_the_filter", shape=(2, 2, C)),
    case("more_taps_than_kernels_have", shape=(2, 12, C), taps=9),
    case("no_batch", shape=(7, C)),
    case("two_batch_axes", shape=(2, 3, 6, C)),
    case("bfloat16", dtype=jnp.bfloat16),
    case("float16_parameters", param_dtype=jnp.float16),
]
each_case = pytest.mark.parametrize(("shape", "taps", "settings"), CASES)


def flax_conv(taps, settings):
    """Arguments of Flax's layer."""
    size = (taps,) if isinstance(taps, int) else taps
    depthwise = dict(feature_group_count=C, padding="CAUSAL")
    return dict(features=C, kernel_size=size, **depthwise, **settings)


def split(layer):
    """The layer as a function of its parameters and inputs."""
    graph, parameters = nnx.split(layer)
    return lambda parameters, x: nnx.merge(graph, parameters)(x), digits(parameters)


@each_case
def test_linen_is_flax(shape, taps, settings):
    theirs = nn.Conv(**flax_conv(taps, settings))
    ours = jlinen.CausalConv1D(taps, **settings)
    x = inputs(shape)
    assert_same_trees(ours.init(KEY, x), theirs.init(KEY, x))
    variables = digits(theirs.init(KEY, x))
    expected = gradients(theirs.apply, variables, x)
    assert_same_trees(gradients(ours.apply, variables, x), expected)


@each_case
def test_nnx_is_flax(shape, taps, settings):
    options = flax_conv(taps, settings)
    theirs = nnx.Conv(C, options.pop("features"), **options, rngs=nnx.Rngs(0))
    ours = jnnx.CausalConv1D(C, taps, **settings, rngs=nnx.Rngs(0))
    assert_same_trees(nnx.state(ours), nnx.state(theirs))
    x = inputs(shape)
    want, parameters = split(theirs)
    got, _ = split(ours)
    expected = gradients(want, parameters, x)
    assert_same_trees(gradients(got, parameters, x), expected)


def test_checkpoints_of_flax_load():
    theirs, ours = nn.Conv(**flax_conv(4, {})), jlinen.CausalConv1D(4)
    x = inputs((2, 7, C))
    trained = digits(theirs.init(KEY, x))
    loaded = from_bytes(ours.init(KEY, x), to_bytes(trained))
    assert_same_trees(ours.apply(loaded, x), theirs.apply(trained, x))


def test_it_runs_in_kernels():
    layer = jlinen.CausalConv1D(4, activation="silu")
    x = normal(0, (2, 7, C), "float32")
    variables = layer.init(KEY, x)
    assert_native(layer.apply, variables, x, ops=["causal_conv1d"])
    decoder = layer.clone(decode=True)
    cached = decoder.init(KEY, x)

    def step(variables, x):
        return decoder.apply(variables, x, mutable=["cache"])

    assert_native(step, cached, x[:, :1], ops=["causal_conv1d_update"])


# --- dtypes, activations, segments ----------------------------------------------


@pytest.mark.parametrize("activation", ["silu", "gelu", jnp.tanh])
def test_activation(activation):
    x = normal(0, (2, 7, C), "float32")
    ours = jlinen.CausalConv1D(4, activation=activation)
    variables = ours.init(KEY, x)
    fn = getattr(jax.nn, activation) if isinstance(activation, str) else activation
    want = fn(nn.Conv(**flax_conv(4, {})).apply(variables, x))
    np.testing.assert_allclose(ours.apply(variables, x), want, rtol=1e-5, atol=1e-6)


def test_dtypes_are_promoted_as_flax_does():
    x = inputs((2, 7, C)).astype(jnp.bfloat16)
    for settings in (dict(), dict(dtype=jnp.bfloat16)):
        theirs = nn.Conv(**flax_conv(4, settings))
        ours = jlinen.CausalConv1D(4, **settings)
        variables = digits(theirs.init(KEY, x))
        assert variables["params"]["kernel"].dtype == jnp.float32
        y = ours.apply(variables, x)
        assert_same_trees(y, theirs.apply(variables, x))
        assert y.dtype == settings.get("dtype", jnp.float32)
        module = jnnx.CausalConv1D(C, 4, **settings, rngs=nnx.Rngs(0))
        nnx.update(module, variables["params"])
        assert_same_trees(module(x), y)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_segments(batch):
    x = normal(0, (*batch, 9, C), "float32")
    ids = np.broadcast_to(np.repeat([3, 1], [4, 5]), x.shape[:-1])
    layer = jlinen.CausalConv1D(4, activation="silu")
    variables = layer.init(KEY, x, ids)
    parts = x[..., :4, :], x[..., 4:, :]
    want = jnp.concatenate([layer.apply(variables, a) for a in parts], axis=-2)
    np.testing.assert_array_equal(layer.apply(variables, x, ids), want)
    module = jnnx.CausalConv1D(C, 4, activation="silu", rngs=nnx.Rngs(0))
    nnx.update(module, variables["params"])
    np.testing.assert_array_equal(module(x, segment_ids=ids), want)


# --- decoding -------------------------------------------------------------------


def linen_decoder(taps, settings, x):
    """A function that decodes the next inputs, and the whole."""
    layer = jlinen.CausalConv1D(taps, bias_init=nn.initializers.normal(), **settings)
    variables = layer.init(KEY, x)
    decoder = layer.clone(decode=True)
    cache = decoder.init(KEY, x[..., :1, :])["cache"]
    assert not any(jnp.any(a) for a in jax.tree.leaves(cache))

    @jax.jit
    def step(cache, x):
        variables_now = {**variables, "cache": cache}
        y, updated = decoder.apply(variables_now, x, mutable=["cache"])
        return updated["cache"], y

    def following(x):
        nonlocal cache
        cache, y = step(cache, x)
        return y

    return following, jax.jit(layer.apply)(variables, x)


def nnx_decoder(taps, settings, x):
    layer = jnnx.CausalConv1D(
        C,
        taps,
        bias_init=nnx.initializers.normal(),
        rngs=nnx.Rngs(0),
        **settings,
    )
    whole = nnx.jit(layer)(x)
    layer.init_cache(x.shape, whole.dtype)
    step = nnx.jit(lambda layer, x: layer(x, decode=True))
    return (lambda x: step(layer, x)), whole


@pytest.mark.parametrize("decoder", [linen_decoder, nnx_decoder])
@pytest.mark.parametrize("parts", ["tokens", "prompt", "chunks"])
@each_case
def test_decoding_has_the_bits_of_the_whole(shape, taps, settings, parts, decoder):
    settings = dict(activation="silu") | settings
    x = normal(0, shape, "float32").astype(settings.get("dtype", "float32"))
    following, whole = decoder(taps, settings, x)
    length = x.shape[-2]
    cuts = {
        "tokens": range(1, length),
        "prompt": range(length // 2, length),
        "chunks": [0, 2, max(2, length - 2)],
    }[parts]
    got = [following(jnp.asarray(a)) for a in np.split(x, [*cuts], axis=-2)]
    got = jnp.concatenate(got, axis=-2)
    if taps == 9:  # `conv` runs these, and promises no bits from length to length
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, whole)


def test_a_call_without_a_cache_starts_a_sequence():
    x = normal(0, (2, 7, C), "float32")
    layer = jlinen.CausalConv1D(4)
    params = layer.init(KEY, x)
    decoder = layer.clone(decode=True)
    first, cache = decoder.apply(params, x[:, :5], mutable=["cache"])
    second, cache = decoder.apply({**params, **cache}, x[:, 5:], mutable=["cache"])
    y = jnp.concatenate([first, second], axis=1)
    np.testing.assert_array_equal(y, layer.apply(params, x))
    np.testing.assert_array_equal(cache["cache"]["cached_state"], x[:, -3:])


class Model(nnx.Module):
    def __init__(self, decode=False):
        rngs = nnx.Rngs(0)
        self.mix = jnnx.CausalConv1D(C, 4, decode=decode, rngs=rngs)
        self.out = nnx.Linear(C, C, rngs=rngs)

    def __call__(self, x):
        return self.out(self.mix(x))


def test_nnx_switches_to_decoding():
    x = normal(0, (2, 7, C), "float32")
    want = Model()(x)[:, :3]
    by_argument, by_attribute = Model(decode=True), Model()
    by_attribute.set_attributes(decode=True)
    for model in (by_argument, by_attribute):
        model.mix.init_cache(x.shape)
    models = [by_argument, by_attribute]
    trained = Model()
    if hasattr(nnx, "view"):
        models.append(nnx.view(trained, decode=True, batch_size=2))
        np.testing.assert_array_equal(trained(x)[:, :3], want)
        assert trained.mix.cached_state is None
    for model in models:
        y = jnp.concatenate([model(x[:, i : i + 1]) for i in range(3)], axis=1)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    model.mix.init_cache(x.shape)
    np.testing.assert_allclose(model(x[:, :1]), want[:, :1], rtol=1e-5, atol=1e-6)


def test_nnx_trains_and_the_cache_is_no_parameter():
    x, target = normal(0, (2, 7, C), "float32"), normal(1, (2, 7, C), "float32")
    model = Model()
    model.mix.init_cache(x.shape)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            return jnp.mean((model(x) - target) ** 2)

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    losses = [step(model, optimizer) for _ in range(5)]
    assert losses[-1] < losses[0]
    kernel = model.mix.kernel[...]
    assert jnp.any(kernel != Model().mix.kernel[...])
    assert not jnp.any(model.mix.cached_state[...])


# --- errors ---------------------------------------------------------------------


def test_what_linen_refuses():
    x = jnp.ones((2, 7, C))
    layer = jlinen.CausalConv1D(4, decode=True)
    variables = layer.init(KEY, x)

    def refused(error, match, layer, x, *ids, variables=variables):
        with pytest.raises(error, match=match):
            layer.apply(variables, x, *ids, mutable=["cache"])

    ids = jnp.zeros((2, 7), jnp.int32)
    refused(ValueError, "segment_ids must be None with decode", layer, x, ids)
    refused(
        ValueError,
        r"cache must have shape \(3, 3, 5\).* for inputs of shape \(3, 1, 5\), got "
        r"\(2, 3, 5\): initialise it for the batch",
        layer,
        x[:1, :1].repeat(3, 0),
    )
    narrow = layer.clone(dtype=jnp.bfloat16)
    refused(TypeError, "cache is float32, and .* computes in bfloat16", narrow, x)
    whole = layer.clone(decode=False)
    match = r"shape of inputs without features, \(2, 7\), got \(2, 6\)"
    refused(ValueError, match, whole, x, ids[:, 1:])
    refused(TypeError, "segment_ids must be integers", whole, x, ids * 1.0)
    refused(ValueError, r"inputs must be \[\*batch, L, C\].*\(5,\)", whole, x[0, 0])
    for settings in (dict(kernel_size=0), dict(kernel_dilation=0)):
        (name,) = settings
        refused(ValueError, f"{name} must be positive", whole.clone(**settings), x)
    refused(ValueError, "swoosh", whole.clone(activation="swoosh"), x)


def test_what_nnx_refuses():
    x = jnp.ones((2, 7, C))
    layer = jnnx.CausalConv1D(C, 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="call init_cache first"):
        layer(x, decode=True)
    with pytest.raises(ValueError, match=r"layer's 5 features, got shape \(2, 7, 1\)"):
        layer(x[..., :1])
    with pytest.raises(ValueError, match=r"layer's 5 features, got shape \(2, 7\)"):
        layer.init_cache((2, 7))
    layer.init_cache(x.shape, jnp.bfloat16)
    with pytest.raises(TypeError, match=r"cache is bfloat16, .* computes in float32"):
        layer(x, decode=True)
    layer.init_cache(x.shape)
    with pytest.raises(ValueError, match=r"shape \(1, 3, 5\).* got \(2, 3, 5\)"):
        layer(x[:1, :1], decode=True)
    with pytest.raises(ValueError, match="segment_ids must be None with decode"):
        layer(x, jnp.zeros((2, 7), jnp.int32), decode=True)
    with pytest.raises(ValueError, match="swoosh"):
        jnnx.CausalConv1D(C, activation="swoosh", rngs=nnx.Rngs(0))
