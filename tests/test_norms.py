# SPDX-License-Identifier: Apache-2.0
"""Norm, activation and convolution in one call, beside float64 and Flax."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from sharded import put

import jax_convbatch as jcb
from jax_convbatch import norms

ACTIVATIONS = {None: lambda z: z, "relu": jax.nn.relu, "silu": jax.nn.silu}


RANDOM = {}


@pytest.fixture(autouse=True)
def same_numbers_whatever_ran_before():
    RANDOM["generator"] = np.random.default_rng(0)


def normal(*shape, dtype="float32"):
    return jnp.asarray(RANDOM["generator"].standard_normal(shape), dtype)


def stock(x, w, bias, scale, shift, activation, residual, strides, padding):
    """In float64 of what is given."""
    rank = x.ndim - 2
    with jax.enable_x64(True):
        wide = [a if a is None else jnp.asarray(np.asarray(a, np.float64))
                for a in (x, w, bias, scale, shift, residual)]  # fmt: skip
        x, w, bias, scale, shift, residual = wide

        def pixels(a):
            return a.reshape(*(a.shape[:-1] or (1,)), *(1,) * rank, a.shape[-1])

        z = x if scale is None else x * pixels(scale)
        z = z if shift is None else z + pixels(shift)
        y = jax.lax.conv_general_dilated(
            ACTIVATIONS[activation](z),
            w,
            (strides,) * rank,
            padding,
            dimension_numbers=jax.lax.ConvDimensionNumbers(
                (0, rank + 1, *range(1, rank + 1)),
                (rank + 1, rank, *range(rank)),
                (0, rank + 1, *range(1, rank + 1)),
            ),
        )
        y = y if bias is None else y + bias
        return np.asarray(y if residual is None else y + residual)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("by_sample", [False, True])
def test_it_is_what_it_says(rank, activation, by_sample):
    """At the borders too: what is padded is the activated x."""
    size, taps = (9, 7, 5)[:rank], (3,) * rank
    x, w = normal(2, *size, 6), normal(*taps, 6, 8)
    shape = (2, 6) if by_sample else (6,)
    scale, shift, bias = normal(*shape), 1 + normal(*shape), normal(8)
    output = tuple(-(-s // 2) for s in size)
    residual = normal(2, *output, 8)
    given = (x, w, bias, scale, shift, activation, residual, 2, "SAME")
    y = norms.norm_act_conv(
        *(x, w, bias),
        scale=scale,
        shift=shift,
        activation=activation,
        residual=residual,
        strides=2,
    )
    np.testing.assert_allclose(y, stock(*given), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale, shift", [(None, None), (1, None), (None, 1)])
def test_scale_and_shift_may_be_left_out(scale, shift):
    x, w = normal(2, 5, 5, 4), normal(3, 3, 4, 4)
    scale, shift = (a and normal(4) for a in (scale, shift))
    y = jcb.norm_act_conv(x, w, scale=scale, shift=shift)
    want = stock(x, w, None, scale, shift, None, None, 1, "SAME")
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4)


def test_the_prologue_is_rounded_once():
    x, w = normal(2, 8, 8, 16, dtype="bfloat16"), normal(3, 3, 16, 8, dtype="bfloat16")
    scale, shift = normal(16), normal(16)
    y = jcb.norm_act_conv(x, w, scale=scale, shift=shift, activation=jnp.tanh)
    z = jnp.tanh(x.astype("float32") * scale + shift).astype("bfloat16")
    np.testing.assert_array_equal(y, jcb.conv(z, w))
    assert y.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("statistics", ["channels", 1, 4, 8])
def test_sums_are_those_of_the_result(dtype, statistics):
    x, w = normal(3, 33, 31, 4, dtype=dtype), normal(3, 3, 4, 8, dtype=dtype)
    call = functools.partial(jcb.norm_act_conv, activation="relu")
    y, sums = jax.jit(lambda x, w: call(x, w, statistics=statistics))(x, w)
    np.testing.assert_array_equal(y, call(x, w))
    wide = np.asarray(y, np.float64)
    if statistics == "channels":
        wide = wide.reshape(-1, 8)
        axes = 0
    else:
        wide = wide.reshape(3, -1, statistics, 8 // statistics)
        axes = (1, 3)
    for got, numbers in zip(sums, (wide, wide**2), strict=True):
        want = numbers.sum(axes)
        assert got.dtype == jnp.float32 and got.shape == want.shape
        bound = 1e-5 * abs(numbers).sum(axes)
        assert (abs(np.asarray(got) - want) <= bound).all()
    for a, b in zip(norms.statistics_of(y, statistics), sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-2)


def flax_norm(kind, gamma, beta):
    if kind == "batch":
        norm = nn.BatchNorm(use_running_average=False, momentum=0.5)
        state = {"batch_stats": {"mean": jnp.zeros(8), "var": jnp.ones(8)}}
    else:
        groups = {"group": 4, "instance": 8, "layer": 1}[kind]
        norm, state = nn.GroupNorm(groups, epsilon=1e-5), {}

    def apply(x, gamma, beta):
        params = {"params": {"scale": gamma, "bias": beta}} | state
        if kind == "batch":
            return norm.apply(params, x, mutable=["batch_stats"])[0]
        return norm.apply(params, x)

    return apply


@pytest.mark.parametrize("kind", ["batch", "group", "instance", "layer"])
def test_two_layers_are_those_of_flax(kind):
    """y and all gradients, those through the statistics of the layer before."""
    x, gamma, beta = normal(3, 6, 6, 4), 1 + 0.1 * normal(8), 0.1 * normal(8)
    w1, w2 = normal(3, 3, 4, 8), normal(3, 3, 8, 4)
    statistics = {"batch": "channels", "group": 4, "instance": 8, "layer": 1}[kind]
    norm = flax_norm(kind, gamma, beta)

    def ours(x, w1, w2, gamma, beta):
        y, sums = jcb.norm_act_conv(x, w1, statistics=statistics)
        scale, shift = norms.scale_and_shift(sums, y.shape, gamma, beta)
        return jcb.norm_act_conv(y, w2, scale=scale, shift=shift, activation="silu")

    def theirs(x, w1, w2, gamma, beta):
        conv = functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return conv(jax.nn.silu(norm(conv(x, w1), gamma, beta)), w2)

    args = (x, w1, w2, gamma, beta)
    with jax.default_matmul_precision("highest"):
        (y, pull), (want, pull_want) = (jax.vjp(f, *args) for f in (ours, theirs))
        dy = normal(*y.shape)
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
        for a, b in zip(pull(dy), pull_want(dy), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("statistics", ["channels", 2])
def test_every_derivative(x64, statistics):
    def call(x, w, bias, scale, shift):
        y, sums = jcb.norm_act_conv(
            *(x, w, bias),
            scale=scale,
            shift=shift,
            activation="silu",
            statistics=statistics,
        )
        return y, jax.tree.map(lambda a: jnp.tanh(a / 50), sums)

    shapes = (2, 4, 3, 3), (2, 2, 3, 4), (4,), (2, 3), (2, 3)
    args = [normal(*s, dtype="float64") for s in shapes]
    check_grads(call, args, 2, rtol=1e-4)


def test_the_backward_pass_keeps_x_and_not_what_it_becomes(capsys):
    x, w, scale = normal(2, 8, 8, 4), normal(3, 3, 4, 8), normal(4)

    def call(x, w, scale):
        return jcb.norm_act_conv(x, w, scale=scale, activation="silu").sum()

    print_saved_residuals(call, x, w, scale)
    kept = [
        line for line in capsys.readouterr().out.splitlines() if "[2,8,8,4]" in line
    ]
    assert kept and all("from the argument x" in line for line in kept)


def test_transforms_agree():
    x, w, scale = normal(5, 2, 6, 6, 4), normal(3, 3, 4, 8), normal(5, 4)

    def call(x, scale):
        return jcb.norm_act_conv(x, w, scale=scale, activation="relu", statistics=2)

    want = [call(*each) for each in zip(x, scale, strict=True)]
    want = jax.tree.map(lambda *a: jnp.stack(a), *want)
    mapped = jax.vmap(call)(x, scale)
    scanned = jax.lax.scan(lambda c, a: (c, jax.jit(call)(*a)), 0, (x, scale))[1]
    again = jax.vmap(jax.checkpoint(call))(x, scale)
    for got in (mapped, scanned, again):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("by_sample", [False, True])
def test_a_batch_that_is_sharded_stays_so(by_sample):
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    x, w = normal(4, 6, 6, 4), normal(3, 3, 4, 8)
    scale = normal(4, 4) if by_sample else normal(4)
    statistics = 2 if by_sample else "channels"

    @jax.jit
    def call(x, w, scale):
        return jcb.norm_act_conv(
            x, w, scale=scale, activation="silu", statistics=statistics
        )

    want = call(x, w, scale)
    specs = (P("batch"), P(), P("batch") if by_sample else P())
    args = put(mesh, (x, w, scale), *specs)
    y, sums = call(*args)
    assert y.sharding.is_equivalent_to(args[0].sharding, y.ndim)
    for a, b in zip(jax.tree.leaves((y, sums)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


X, W = jnp.ones((2, 5, 5, 4)), jnp.ones((3, 3, 4, 6))
BAD = {
    "scale of another size": (
        dict(scale=jnp.ones(6)),
        ValueError,
        r"scale must have shape \(4,\) or \(2, 4\).*got \(6,\)",
    ),
    "shift by pixel": (
        dict(shift=jnp.ones((2, 5, 5, 4))),
        ValueError,
        r"shift must have shape",
    ),
    "whole numbers": (
        dict(scale=jnp.ones(4, "int32")),
        TypeError,
        "scale must be of a floating dtype, got int32",
    ),
    "no array": (dict(shift=1.0), TypeError, "shift must be an array, got float"),
    "groups that do not divide": (
        dict(statistics=4),
        ValueError,
        "statistics must be None, .* divides the 6 channels, got 4",
    ),
    "statistics of another name": (
        dict(statistics="batch"),
        ValueError,
        "statistics must be None",
    ),
    "an unknown activation": (
        dict(activation="swish"),
        ValueError,
        "unknown activation 'swish'",
    ),
    "a keyword that is missed": (dict(stride=2), TypeError, "strides"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        jcb.norm_act_conv(X, W, **options)


def test_bad_arrays_are_named():
    with pytest.raises(TypeError, match="x must be of a floating dtype, got int32"):
        jcb.norm_act_conv(X.astype("int32"), W)
    with pytest.raises(ValueError, match=r"x must be \[N, \*spatial, C\]"):
        norms.statistics_of(jnp.ones(3), "channels")
    sums = norms.statistics_of(X, "channels")
    with pytest.raises(TypeError, match=r"shape must be a sequence.*; pass its shape"):
        norms.scale_and_shift(sums, X)
    with pytest.raises(ValueError, match=r"statistics must be \[K\] or \[N, groups\]"):
        norms.scale_and_shift(sums, (2, 5, 5, 8))
    for name in ("gamma", "beta"):
        with pytest.raises(ValueError, match=rf"{name} must have shape \(4,\)"):
            norms.scale_and_shift(sums, X.shape, **{name: jnp.ones(3)})


@pytest.mark.parametrize("statistics", ["channels", 2])
def test_a_batch_may_be_symbolic(statistics):
    (n,) = jax.export.symbolic_shape("n")

    def fun(x, w):
        sums = norms.statistics_of(x, statistics)
        scale, shift = norms.scale_and_shift(sums, x.shape)
        return norms.norm_act_conv(
            x, w, scale=scale, shift=shift, activation="silu", algorithm="xla"
        )

    w = normal(3, 3, 4, 8)
    shape = jax.ShapeDtypeStruct((n, 5, 6, 4), "float32")
    exported = jax.export.export(
        jax.jit(fun), platforms=["cpu"], disabled_checks=jcb.export_checks()
    )(shape, jax.ShapeDtypeStruct(w.shape, w.dtype))
    x = normal(3, 5, 6, 4)
    np.testing.assert_allclose(exported.call(x, w), fun(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("statistics", ["channels", 2])
def test_an_empty_batch_has_a_norm(statistics):
    x, w = jnp.zeros((0, 5, 6, 4)), normal(3, 3, 4, 8)
    sums = norms.statistics_of(x, statistics)
    scale, shift = norms.scale_and_shift(sums, x.shape)
    y, after = norms.norm_act_conv(
        x, w, scale=scale, shift=shift, statistics=statistics
    )
    assert y.shape == (0, 5, 6, 8)
    assert after.sum.shape == ((8,) if statistics == "channels" else (0, 2))


@pytest.mark.parametrize("groups", ["channels", 2])
def test_ranks_are_not_promoted(groups):
    x = jnp.ones((2, 5, 5, 4))
    with jax.numpy_rank_promotion("raise"):
        sums = norms.statistics_of(x, groups)
        scale, shift = norms.scale_and_shift(sums, x.shape, jnp.ones(4), jnp.zeros(4))
    assert scale.shape == shift.shape == ((2, 4) if groups == 2 else (4,))
