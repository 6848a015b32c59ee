# SPDX-License-Identifier: Apache-2.0
"""NormActConv is Flax's norm, an activation and Flax's convolution."""

from functools import partial

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_cases import assert_same_trees

from jax_convbatch import norms
from jax_convbatch.flax import linen
from jax_convbatch.flax import nnx as ours_nnx

KEY = jax.random.key(0)
KINDS = ["batch", "frozen", "group", "instance", None]
C, K, GROUPS = 8, 6, 4
# Batch norms in training have the largest sums of rounded numbers.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.04}


class Stock(nn.Module):
    """The layer in Flax's own."""

    kind: str | None
    dtype: str | None = None
    strides: int = 1
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x, residual=None, modulation=None, offset=None):
        if offset is not None:
            x = x + offset[:, None, None]
        options = dict(dtype=self.dtype, param_dtype=self.param_dtype, name="norm")
        if self.kind in ("batch", "frozen"):
            x = nn.BatchNorm(self.kind == "frozen", **options)(x)
        elif self.kind == "group":
            x = nn.GroupNorm(GROUPS, **options)(x)
        elif self.kind == "instance":
            x = nn.InstanceNorm(**options)(x)
        if modulation is not None:
            scale, shift = (a[:, None, None] for a in modulation)
            x = (x * (1 + scale) + shift).astype(x.dtype)
        options["name"] = "conv"
        y = nn.Conv(K, (3, 3), self.strides, **options)(nn.silu(x))
        return y if residual is None else y + residual


def of_kind(kind):
    """The arguments of our layers."""
    norm = "batch" if kind == "frozen" else kind
    options = dict(norm=norm, num_groups=GROUPS, activation="silu")
    if norm == "batch":
        options["use_running_average"] = kind == "frozen"
    return options


def normal(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng((seed, *shape))
    return jnp.asarray(rng.standard_normal(shape), dtype)


def perturbed(variables):
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda a: (a + 0.3 * rng.random(a.shape)).astype(a.dtype), variables
    )


def nnx_layer(variables, kind, **options):
    """The nnx layer with linen's variables."""
    layer = ours_nnx.NormActConv(
        C, K, (3, 3), **of_kind(kind), **options, rngs=nnx.Rngs(0)
    )
    state = nnx.state(layer)
    given = {part: dict(v) for part, v in variables["params"].items()}
    for part, found in variables.get("batch_stats", {}).items():
        given[part] |= found
    nnx.replace_by_pure_dict(state, given)
    nnx.update(layer, state)
    return layer


def assert_close(got, want, tolerance):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        bound = tolerance * max(1.0, abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=bound)


def value_and_gradients(call, variables, *arrays):
    """y, what became of the statistics, and gradients of all that is given."""

    @jax.jit
    def run(variables, arrays):
        y, pull, updated = jax.vjp(call, variables, *arrays, has_aux=True)
        return y, updated, pull(normal(*y.shape, dtype=y.dtype, seed=7))

    return run(variables, arrays)


def linen_call(layer):
    def call(variables, *arrays):
        return layer.apply(variables, *arrays, mutable=["batch_stats"])

    return call


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_gradients_and_statistics_are_those_of_flax(kind, dtype):
    arrays = normal(3, 9, 8, C, dtype=dtype), normal(3, 5, 4, K, dtype=dtype)
    theirs = Stock(kind, dtype, 2)
    ours = linen.NormActConv(K, (3, 3), 2, **of_kind(kind), dtype=dtype)
    variables = theirs.init(KEY, *arrays)
    assert_same_trees(ours.init(KEY, *arrays), variables)
    variables = perturbed(variables)
    want = value_and_gradients(linen_call(theirs), variables, *arrays)
    got = value_and_gradients(linen_call(ours), variables, *arrays)
    assert got[0].dtype == dtype
    assert_close(got, want, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["batch", "frozen", "group", "instance"])
def test_epsilon_is_that_of_flax(kind):
    """Seen where the variance is as small."""
    x = 2e-3 * normal(3, 6, 6, C)
    theirs, ours = Stock(kind), linen.NormActConv(K, (3, 3), **of_kind(kind))
    variables = theirs.init(KEY, x)
    small = jax.tree.map(lambda a: 4e-6 * a, variables.get("batch_stats", {}))
    variables = {**variables, "batch_stats": small}
    call = partial(nnx_layer(variables, kind), x)
    want = theirs.apply(variables, x, mutable=["batch_stats"])[0]
    got = ours.apply(variables, x, mutable=["batch_stats"])[0]
    assert_close(got, want, 2e-5)
    assert_close(call(), want, 2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_nnx_is_linen(kind, dtype):
    arrays = normal(3, 9, 8, C, dtype=dtype), normal(3, 5, 4, K, dtype=dtype)
    ours = linen.NormActConv(K, (3, 3), 2, **of_kind(kind), dtype=dtype)
    variables = perturbed(ours.init(KEY, *arrays))
    layer = nnx_layer(variables, kind, strides=2, dtype=dtype)
    graph, state = nnx.split(layer)

    def call(state, *arrays):
        layer = nnx.merge(graph, state)
        return layer(*arrays), nnx.to_pure_dict(nnx.state(layer, nnx.BatchStat))

    y, updated, (by_state, *rest) = value_and_gradients(call, state, *arrays)
    want, linen_updated, (by_variables, *linen_rest) = value_and_gradients(
        linen_call(ours), variables, *arrays
    )
    by_state = nnx.to_pure_dict(by_state)
    params = by_variables["params"]
    params_by_state = {
        part: {name: by_state[part][name] for name in found}
        for part, found in params.items()
    }
    linen_updated = dict(linen_updated).get("batch_stats", {})
    if kind == "frozen":  # linen says only what changed
        linen_updated, updated = {}, {}
    assert_close(
        (y, updated, params_by_state, rest),
        (want, linen_updated, params, linen_rest),
        TOLERANCE[dtype],
    )


def test_an_nnx_layer_follows_train_and_eval():
    x = normal(2, 6, 6, C)
    layer = ours_nnx.NormActConv(C, K, (3, 3), rngs=nnx.Rngs(0))
    stock = nnx.BatchNorm(C, rngs=nnx.Rngs(0))
    conv = nnx.Conv(C, K, (3, 3), rngs=nnx.Rngs(0))
    conv.kernel[...] = layer.conv.kernel[...]
    for mode in ("train", "eval"):
        for module in (layer, stock):
            getattr(module, mode)()
        assert_close(layer(x), conv(stock(x)), 2e-5)
        assert_close(layer.norm.mean[...], stock.mean[...], 2e-5)
        assert_close(layer.norm.var[...], stock.var[...], 2e-5)


class TwoLayers(nn.Module):
    """Of Flax's layers or ours, by the names that they have."""

    ours: bool

    @nn.compact
    def __call__(self, x):
        for i, kind in enumerate(("group", "batch")):
            if self.ours:
                x = linen.NormActConv(K, (3, 3), **of_kind(kind), name=f"layer{i}")(x)
            else:
                x = Stock(kind, name=f"layer{i}")(x)
            x = jnp.concatenate([x, x[..., :2]], -1)
        return x


def test_checkpoints_load_both_ways():
    x = normal(2, 6, 6, C)
    for ours in (False, True):
        one, other = TwoLayers(ours), TwoLayers(not ours)
        variables = perturbed(one.init(KEY, x))
        blank = other.init(KEY, x)
        loaded = flax.serialization.from_bytes(
            blank, flax.serialization.to_bytes(variables)
        )
        assert_same_trees(loaded, variables)
        call = partial(other.apply, loaded, x, mutable=["batch_stats"])
        want = one.apply(variables, x, mutable=["batch_stats"])
        assert_close(call(), want, 2e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_offset_and_modulation_are_by_sample_and_channel(kind, known):
    """With the statistics of x alone, where they are known."""
    if known and kind in ("frozen", None):
        pytest.skip("needs no statistics")
    x = normal(3, 6, 6, C)
    by_sample = [normal(3, C, seed=seed) for seed in (1, 2, 3)]
    theirs = Stock(kind)
    ours = linen.NormActConv(K, (3, 3), **of_kind(kind))
    variables = perturbed(theirs.init(KEY, x))

    def mine(variables, x, offset, *pair):
        return ours.apply(
            variables,
            x,
            offset=offset,
            modulation=pair,
            statistics=norms.statistics_of(x, C) if known else None,
            mutable=["batch_stats"],
        )

    def stock(variables, x, offset, *pair):
        return theirs.apply(variables, x, None, pair, offset, mutable=["batch_stats"])

    got, want = (
        value_and_gradients(f, variables, x, *by_sample) for f in (mine, stock)
    )
    assert_close(got, want, 3e-5)
    layer = nnx_layer(variables, kind)
    y = layer(x, offset=by_sample[0], modulation=by_sample[1:])
    assert_close(y, want[0], 3e-5)


@pytest.mark.parametrize("kind", ["batch", "group", "instance"])
@pytest.mark.parametrize("by", ["channel", "own"])
def test_statistics_that_are_known_are_not_formed_again(kind, by, monkeypatch):
    """A layer that is given the sums of the layer before gives what it gives alone."""
    x = normal(3, 6, 6, C)
    first = linen.NormActConv(C, (3, 3), norm=None)
    second = linen.NormActConv(K, (3, 3), **of_kind(kind))
    own = {"batch": "channels", "group": GROUPS, "instance": C}[kind]
    asked = C if by == "channel" else own
    one = first.init(KEY, x)
    y, sums = first.apply(one, x, return_statistics=asked)
    assert_close(y, first.apply(one, x), 1e-6)
    two = perturbed(second.init(KEY, y))
    call = partial(second.apply, two, y, mutable=["batch_stats"])
    want = call()
    monkeypatch.setattr(
        "jax_convbatch.flax._norm_act.statistics_of", lambda *_: pytest.fail("again")
    )
    assert_close(call(statistics=sums), want, 2e-5)
    layer = nnx_layer(two, kind)
    assert_close(layer(y, statistics=sums), want[0], 2e-5)


def test_statistics_of_arrays_that_are_joined_are_joined():
    """As the skip connections of a U-Net have it."""
    x, skip = normal(2, 6, 6, 5), normal(2, 6, 6, 3, seed=2)
    layer = linen.NormActConv(K, (3, 3), **of_kind("group"))
    joined = jnp.concatenate([x, skip], -1)
    variables = perturbed(layer.init(KEY, joined))
    parts = norms.statistics_of(x, 5), norms.statistics_of(skip, 3)
    sums = jax.tree.map(lambda *a: jnp.concatenate(a, -1), *parts)
    got = layer.apply(variables, joined, statistics=sums)
    assert_close(got, layer.apply(variables, joined), 2e-5)


def test_devices_share_statistics_by_the_name_of_their_axis():
    x = normal(4, 3, 6, 6, C)
    options = of_kind("batch") | dict(features=K, kernel_size=(3, 3))
    one = linen.NormActConv(**options)
    several = linen.NormActConv(**options, axis_name="devices")
    variables = perturbed(one.init(KEY, x[0]))
    assert_same_trees(several.init(KEY, x[0]), one.init(KEY, x[0]))
    call = partial(several.apply, variables, mutable=["batch_stats"])
    y, updated = jax.vmap(call, axis_name="devices")(x)
    want, updated_once = one.apply(
        variables, x.reshape(12, 6, 6, C), mutable=["batch_stats"]
    )
    assert_close(y.reshape(want.shape), want, 2e-5)
    assert_close(jax.tree.map(lambda a: a[0], updated), updated_once, 2e-5)


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_dtypes_are_promoted_as_in_flax(param_dtype):
    x = normal(2, 6, 6, C, dtype="bfloat16")
    theirs = Stock("group", param_dtype=param_dtype)
    ours = linen.NormActConv(K, (3, 3), **of_kind("group"), param_dtype=param_dtype)
    variables = perturbed(theirs.init(KEY, x))
    assert_same_trees(perturbed(ours.init(KEY, x)), variables)
    got, want = (layer.apply(variables, x) for layer in (ours, theirs))
    assert got.dtype == want.dtype == jnp.promote_types("bfloat16", param_dtype)
    assert_close(got, want, TOLERANCE[got.dtype.name])


def test_a_batch_norm_takes_any_batch_axes_and_all_of_convs_options():
    x = normal(2, 2, 9, C)
    options = dict(strides=2, padding="CIRCULAR", kernel_dilation=2, use_bias=False)
    options |= dict(feature_group_count=2, mask=jnp.ones((3, C // 2, K)).at[0].set(0))
    ours = linen.NormActConv(K, 3, use_running_average=True, **options)
    variables = perturbed(ours.init(KEY, x))
    conv = {"params": variables["params"]["conv"]}
    norm = {name: variables[name]["norm"] for name in ("params", "batch_stats")}
    h = nn.BatchNorm(use_running_average=True).apply(norm, x)
    want = nn.Conv(K, 3, **options).apply(conv, h)
    assert_close(ours.apply(variables, x), want, 2e-5)
    assert_close(ours.apply(variables, x[0]), want[0], 2e-5)


def test_the_backward_pass_keeps_the_inputs_alone():
    x = normal(2, 8, 8, C)
    layer = linen.NormActConv(K, (3, 3), **of_kind("group"))
    variables = layer.init(KEY, x)

    def kept(call):
        _, pull = jax.vjp(call, x)
        found = [a for a in jax.tree.leaves(pull) if a.shape == x.shape]
        return sum(not (a == x).all() for a in found)

    assert kept(partial(layer.apply, variables)) == 0
    assert kept(partial(Stock("group").apply, variables)) > 0
