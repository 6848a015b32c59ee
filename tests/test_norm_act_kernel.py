# SPDX-License-Identifier: Apache-2.0
"""Norm, activation and convolution in one kernel on Hopper GPUs, and its gradient."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_convbatch as jcb
from jax_convbatch import norms
from jax_convbatch._api.canonical import geometry_of
from jax_convbatch._layers import norm_act_parts
from jax_convbatch._native import hopper
from jax_convbatch._plans.params import ConvParams

NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}


class Layer(NamedTuple):
    n: int
    pixels: tuple
    taps: tuple
    channels: tuple
    activation: str = "silu"
    by_sample: bool = True
    bias: bool = False
    residual: bool = False
    dtype: str = "bfloat16"
    padding: object = "SAME"
    dilation: int = 1

    @property
    def shapes(self):
        c, k = self.channels
        return (self.n, *self.pixels, c), (*self.taps, c, k)


# Tiles of 64 to 160 channels, whole and cut; images of several tiles, cut ones;
# channels that fill no box; two images a tile; rows.
LAYERS = {
    "64": Layer(2, (16, 16), (3, 3), (64, 64), bias=True, residual=True),
    "128": Layer(3, (32, 32), (3, 3), (128, 128)),
    "160": Layer(2, (64, 64), (3, 3), (320, 320), bias=True, dtype="float16"),
    "cut": Layer(2, (47, 30), (3, 3), (96, 168), "gelu", False, True, True),
    "1x1": Layer(2, (16, 24), (1, 1), (128, 192), "relu", False, True),
    "valid": Layer(2, (34, 26), (3, 3), (72, 136), "identity", padding="VALID"),
    "asymmetric": Layer(
        2, (31, 32), (3, 2), (64, 64), residual=True, padding=((0, 2), (1, 0))
    ),
    "dilated": Layer(2, (32, 64), (1, 3), (64, 128), dilation=2, dtype="float16"),
    "a sequence": Layer(2, (500,), (5,), (128, 256), "gelu", False, True, True),
    "a batch norm": Layer(5, (32, 40), (3, 3), (64, 128), "relu", False),
    "few rows": Layer(3, (8, 40), (3, 3), (128, 64), residual=True),
}


def params_of(layer, **options):
    x, w = layer.shapes
    rank = len(layer.pixels)
    g, numbers, _ = geometry_of(
        *(jax.ShapeDtypeStruct(shape, np.float32) for shape in (x, w)),
        window_strides=(1,) * rank,
        padding=layer.padding,
        lhs_dilation=(1,) * rank,
        rhs_dilation=(layer.dilation,) * rank,
        dimension_numbers=NUMBERS[rank],
        feature_group_count=1,
        batch_group_count=1,
        preferred_element_type=None,
    )
    return ConvParams(g, numbers, **options)


def stock_conv(x, w, layer):
    rank = len(layer.pixels)
    return jax.lax.conv_general_dilated(
        x, w, (1,) * rank, layer.padding,
        rhs_dilation=(layer.dilation,) * rank, dimension_numbers=NUMBERS[rank],
        precision="highest",
    )  # fmt: skip


def static_of(layer, **options):
    return norm_act_parts.NormAct(
        params_of(layer, **options),
        layer.activation,
        layer.bias,
        layer.residual,
        "channels",
    )


def planned(layer, op="fprop", **options):
    return norm_act_parts.plan(static_of(layer, **options), layer.dtype, "cuda", op)


def take_kernels(monkeypatch):
    """Wherever there is one, also where a pass and a convolution are as fast."""
    found = hopper.norm_act_plan

    def preferred(*arguments):
        plan = found(*arguments)
        return plan and {**plan, "preferred": True}

    monkeypatch.setattr(hopper, "norm_act_plan", preferred)


@pytest.fixture
def always(monkeypatch):
    take_kernels(monkeypatch)


def operands(layer, seed=0):
    rng = np.random.default_rng(seed)
    x, w = layer.shapes
    factors = (layer.n, x[-1]) if layer.by_sample else (x[-1],)
    out = {
        "x": rng.standard_normal(x),
        "w": rng.standard_normal(w) / math.sqrt(math.prod(w[:-1])),
        "scale": 1 + 0.3 * rng.standard_normal(factors),
        "shift": 0.5 * rng.standard_normal(factors),
    }
    dtypes = dict(x=layer.dtype, w=layer.dtype, scale="float32", shift="float32")
    y = jax.eval_shape(lambda: stock_conv(jnp.zeros(x), jnp.zeros(w), layer)).shape
    if layer.bias:
        out["bias"], dtypes["bias"] = rng.standard_normal(w[-1:]), layer.dtype
    if layer.residual:
        out["residual"], dtypes["residual"] = rng.standard_normal(y), layer.dtype
    dy = jnp.asarray(rng.standard_normal(y), layer.dtype)
    return {n: jnp.asarray(a, dtypes[n]) for n, a in out.items()}, dy


def ours(layer, statistics=None, **more):
    def call(given):
        given = dict(given)
        return jcb.norm_act_conv(
            given.pop("x"), given.pop("w"), **given, activation=layer.activation,
            statistics=statistics, padding=layer.padding, dilation=layer.dilation,
            **more,
        )  # fmt: skip

    return call


def exact(layer):
    """In float64, the activated x rounded as it is stored."""
    fn = {"silu": jax.nn.silu, "relu": jax.nn.relu, "gelu": jax.nn.gelu}

    def call(given):
        x = given["x"]
        of_pixels = (-1, *(1,) * len(layer.pixels), x.shape[-1])
        z = x * given["scale"].reshape(of_pixels) + given["shift"].reshape(of_pixels)
        h = fn.get(layer.activation, lambda z: z)(z)
        h = h + jax.lax.stop_gradient(
            h.astype("float32").astype(layer.dtype).astype(h.dtype) - h
        )
        y = stock_conv(h, given["w"], layer)
        return y + given.get("bias", 0) + given.get("residual", 0)

    return call


def wide(tree):
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), tree)


def assert_near(got, want, dtype, roundings=1):
    got, want = (np.asarray(a, np.float64) for a in (got, want))
    most = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-8}[
        np.dtype(dtype).name
    ]
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= roundings * most * np.abs(want).max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYERS)
def test_forward(hopper, always, name):
    layer = LAYERS[name]
    given, _ = operands(layer)
    y, sums = jax.jit(ours(layer, "channels"))(given)
    with jax.enable_x64(True):
        assert_near(y, exact(layer)(wide(given)), layer.dtype)
    axes = tuple(range(y.ndim - 1))
    y = np.asarray(y, np.float64)
    np.testing.assert_allclose(
        sums.sum, y.sum(axes), atol=2e-5 * np.abs(y).sum(axes).max()
    )
    np.testing.assert_allclose(sums.squares, (y * y).sum(axes), rtol=1e-5)
    groups = layer.channels[1] // 4
    by_group = jax.jit(ours(layer, groups))(given)[1]
    wanted = y.reshape(layer.n, -1, groups, 4)
    np.testing.assert_allclose(
        by_group.squares, (wanted * wanted).sum((1, 3)), rtol=1e-5
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYERS)
def test_backward(hopper, always, name):
    layer = LAYERS[name]
    given, dy = operands(layer, 1)

    def loss(given):
        y, _ = ours(layer, "channels")(given)
        return (y.astype("float32") * dy.astype("float32")).sum()

    found = jax.jit(jax.grad(loss))(given)
    with jax.enable_x64(True):
        wanted = jax.vjp(exact(layer), wide(given))[1](wide(dy))[0]
    for name, want in wanted.items():
        assert found[name].dtype == given[name].dtype
        # Of what is stored between, too.
        assert_near(found[name], want, layer.dtype, roundings=2)


@pytest.mark.gpu
def test_backward_through_the_statistics(hopper, always):
    """Of two layers, beside what the composition gives."""
    layer = LAYERS["128"]
    given, dy = operands(layer, 2)

    def two(algorithm):
        def loss(x, w):
            sums = norms.statistics_of(x, 32)
            for statistics in (16, None):
                scale, shift = norms.scale_and_shift(sums, x.shape)
                out = jcb.norm_act_conv(
                    x, w, scale=scale, shift=shift, activation="silu",
                    statistics=statistics, algorithm=algorithm,
                )  # fmt: skip
                x, sums = out if statistics else (out, None)
            return (x.astype("float32") * dy.astype("float32")).sum()

        return jax.jit(jax.grad(loss, (0, 1)))(given["x"], given["w"])

    for a, b in zip(two("auto"), two("xla"), strict=True):
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        assert np.abs(a - b).max() < 0.03 * np.abs(b).max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["64", "160", "cut", "a sequence"])
def test_the_bits_of_a_sample_do_not_depend_on_the_batch(hopper, always, name):
    layer = LAYERS[name]._replace(by_sample=True, residual=False, n=64)
    given, dy = operands(layer)
    groups = layer.channels[1] // 4

    def all_of(given, dy):
        (y, sums), pull = jax.vjp(ours(layer, groups), given)
        zeros = jax.tree.map(jnp.zeros_like, sums)
        found = pull((dy, zeros))[0]
        return y, sums, found["x"], found["scale"], found["shift"]

    whole = jax.jit(all_of)(given, dy)
    for n in (1, 2, 5):
        some = {
            k: a[:n] if k in ("x", "scale", "shift") else a for k, a in given.items()
        }
        part = jax.jit(all_of)(some, dy[:n])
        for a, b in zip(*map(jax.tree.leaves, (whole, part)), strict=True):
            np.testing.assert_array_equal(a[:n], b)


@pytest.mark.gpu
def test_a_hundred_runs_give_the_same_bits(hopper, always):
    layer = LAYERS["cut"]
    given, _ = operands(layer)
    step = jax.jit(lambda g: jax.vjp(ours(layer, "channels"), g)[0])
    grad = jax.jit(jax.grad(lambda g: ours(layer)(g).astype("float32").sum()))
    first = jax.tree.leaves((step(given), grad(given)))
    for _ in range(100):
        again = jax.tree.leaves((step(given), grad(given)))
        assert all((a == b).all() for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
def test_transforms(hopper, always):
    layer = LAYERS["64"]
    given, dy = operands(layer)
    call = ours(layer, 16)
    want = call(given)
    two = {
        k: jnp.stack([a, a[::-1]]) for k, a in given.items() if k not in ("w", "bias")
    }
    some = {k: given[k] for k in ("w", "bias")}
    mapped = jax.jit(jax.vmap(lambda t: call({**some, **t})))(two)
    for a, b in zip(*map(jax.tree.leaves, (mapped, want)), strict=True):
        np.testing.assert_array_equal(a[0], b)
    # Forward mode beside backward mode.
    plain = ours(layer)
    dots = jax.tree.map(jnp.ones_like, given)
    _, tangent = jax.jvp(plain, [given], [dots])
    along = (tangent.astype("float32") * dy.astype("float32")).sum()
    back = jax.vjp(plain, given)[1](dy)[0]
    total = sum(jnp.sum(a.astype("float32")) for a in jax.tree.leaves(back))
    np.testing.assert_allclose(along, total, rtol=0.05)
    second = jax.grad(
        lambda g: sum(
            jnp.sum(a.astype("float32") ** 2)
            for a in jax.tree.leaves(jax.vjp(plain, g)[1](dy)[0])
        )
    )(given)
    assert all(
        np.isfinite(np.asarray(a, np.float32)).all() for a in jax.tree.leaves(second)
    )
