# SPDX-License-Identifier: Apache-2.0
"""The layers `DeformConv` of linen and nnx."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from problems import normal

import jax_convbatch as jc
from jax_convbatch.flax import linen, params_from_mmcv
from jax_convbatch.flax import nnx as ours_nnx

X = normal(0, (2, 6, 7, 8), "float32")
SETTINGS = [
    dict(),
    dict(modulated=False, use_bias=False, strides=2),
    dict(padding=((1, 0), (2, 1)), kernel_dilation=2, activation="relu"),
    dict(feature_group_count=2, offset_groups=4, strides=(2, 1)),
]


def linen_layer(**settings):
    layer = linen.DeformConv(6, (3, 2), **settings)
    return layer, layer.init(jax.random.key(0), X)


def trained(variables, seed=1):
    """Other numbers than zeros for the predictor."""
    leaves, tree = jax.tree.flatten(variables)
    return jax.tree.unflatten(
        tree, [normal(seed + i, a.shape, "float32") / 4 for i, a in enumerate(leaves)]
    )


@pytest.mark.parametrize("settings", SETTINGS)
def test_it_starts_as_a_convolution(settings):
    layer, variables = linen_layer(**settings)
    plain = {
        k: v
        for k, v in settings.items()
        if k not in ("modulated", "offset_groups", "activation")
    }
    conv = nn.Conv(6, (3, 2), **plain)
    own = {k: v for k, v in variables["params"].items() if k != "offset"}
    z = conv.apply({"params": own}, X)  # the bias is zero
    half = 0.5 if settings.get("modulated", True) else 1
    want = half * (jax.nn.relu(z) if "activation" in settings else z)
    np.testing.assert_allclose(layer.apply(variables, X), want, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
def test_linen_is_its_parts_and_nnx_is_linen(settings):
    layer, variables = linen_layer(**settings)
    variables = trained(variables)
    params = variables["params"]
    common = dict(
        strides=settings.get("strides", 1), padding=settings.get("padding", "SAME")
    )
    out = jc.conv(
        X,
        params["offset"]["kernel"],
        params["offset"]["bias"],
        dilation=settings.get("kernel_dilation", 1),
        **common,
    )
    groups = settings.get("offset_groups", 1)
    taps = groups * 6
    assert out.shape[-1] == (3 if settings.get("modulated", True) else 2) * taps
    mask = jax.nn.sigmoid(out[..., 2 * taps :]) if out.shape[-1] > 2 * taps else None
    want = jc.deform_conv(
        X,
        out[..., : 2 * taps],
        params["kernel"],
        params.get("bias"),
        mask,
        dilation=settings.get("kernel_dilation", 1),
        groups=settings.get("feature_group_count", 1),
        offset_groups=groups,
        activation=settings.get("activation"),
        **common,
    )
    got = layer.apply(variables, X)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    module = ours_nnx.DeformConv(8, 6, (3, 2), rngs=nnx.Rngs(0), **settings)
    module.kernel[...] = jnp.asarray(params["kernel"])
    module.offset.kernel[...] = jnp.asarray(params["offset"]["kernel"])
    module.offset.bias[...] = jnp.asarray(params["offset"]["bias"])
    if module.bias is not None:
        module.bias[...] = jnp.asarray(params["bias"])
    np.testing.assert_array_equal(module(X), got)


def test_it_learns_where_to_read():
    # The target is the image moved by a fraction of a pixel: only offsets can do it.
    layer = linen.DeformConv(1, 1, modulated=False, use_bias=False)
    rows = np.linspace(0, 3, 12, dtype="float32")
    image = np.sin(rows)[None, :, None, None] + np.cos(2 * rows)[None, None, :, None]
    offset = np.broadcast_to(np.float32([0.4, -0.3]), (1, 12, 12, 2))
    target = jc.deform_conv(image, offset, np.ones((1, 1, 1, 1), "float32"))
    params = layer.init(jax.random.key(0), image)["params"]
    params = {**params, "kernel": jnp.ones((1, 1, 1, 1))}

    @jax.jit
    def step(bias):
        def loss(bias):
            new = {**params, "offset": {**params["offset"], "bias": bias}}
            y = layer.apply({"params": new}, image)
            return ((y - target)[:, 2:-2, 2:-2] ** 2).mean()

        value, grad = jax.value_and_grad(loss)(bias)
        return value, bias - 0.4 * grad

    bias = jnp.zeros(2)
    for _ in range(400):
        value, bias = step(bias)
    assert value < 1e-5
    np.testing.assert_allclose(bias, [0.4, -0.3], atol=0.03)


def test_gradients_run_natively():
    layer, variables = linen_layer()
    rows = jc.explain(jax.grad(lambda v: layer.apply(v, X).sum()), variables)
    ops = {row.op for row in rows}
    assert {"deform_dgrad", "deform_wgrad", "wgrad"} <= ops
    assert all(row.engine != "xla" for row in rows), rows


def test_batch_axes_and_dtypes():
    layer, variables = linen_layer(dtype=jnp.bfloat16)
    y = layer.apply(variables, X)
    assert y.dtype == jnp.bfloat16
    assert variables["params"]["kernel"].dtype == np.float32
    layer, variables = linen_layer()
    variables = trained(variables)
    y = layer.apply(variables, X)
    np.testing.assert_array_equal(layer.apply(variables, X[None])[0], y)
    np.testing.assert_array_equal(layer.apply(variables, X[0]), y[0])


def test_mmcvs_parameters():
    state = {
        "weight": normal(1, (6, 8, 3, 2)),
        "bias": normal(2, (6,)),
        "conv_offset.weight": normal(3, (18, 8, 3, 2)),
        "conv_offset.bias": normal(4, (18,)),
    }
    params = params_from_mmcv(state)
    _, variables = linen_layer()
    assert jax.tree.map(np.shape, params) == jax.tree.map(
        np.shape, dict(variables["params"])
    )
    assert params["kernel"][2, 1, 5, 3] == np.float32(state["weight"][3, 5, 2, 1])
    del state["bias"]
    assert "bias" not in params_from_mmcv(state)


def test_what_is_refused():
    with pytest.raises(ValueError, match="must divide the 8 features"):
        linen_layer(feature_group_count=3)
    with pytest.raises(ValueError, match="divide the 8 channels"):
        linen_layer(offset_groups=3)
    with pytest.raises(ValueError, match="swoosh"):
        ours_nnx.DeformConv(8, 6, 3, activation="swoosh", rngs=nnx.Rngs(0))
