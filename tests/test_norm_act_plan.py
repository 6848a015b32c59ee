# SPDX-License-Identifier: Apache-2.0
"""Which norms, activations and convolutions are one kernel; needs no GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_gpus import on
from test_norm_act_kernel import LAYERS, Layer, planned, static_of, take_kernels

import jax_convbatch as jcb
from jax_convbatch._layers import norm_act_parts
from jax_convbatch._native import targets


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", LAYERS)
def test_there_is_a_kernel(native, monkeypatch, name, op):
    take_kernels(monkeypatch)
    on(monkeypatch, "9.0")
    found = planned(LAYERS[name], op)
    assert found is not None and found["tile_n"] in (64, 96, 128, 160)


LARGE = Layer(3, (64, 64), (3, 3), (128, 320))
BOTH = (
    LARGE,
    LARGE._replace(pixels=(32, 33)),
    LARGE._replace(dtype="float16"),
    LARGE._replace(pixels=(16384,), taps=(5,), channels=(768, 896)),
)
GRADIENTS = (
    LARGE._replace(taps=(1, 1)),
    LARGE._replace(channels=(64, 64)),
    LARGE._replace(pixels=(4096,), taps=(5,)),
)
NEITHER = (
    LARGE._replace(dtype="float32"),
    LARGE._replace(channels=(100, 128)),
    LARGE._replace(taps=(7, 7)),
    LARGE._replace(pixels=(16, 16)),
    LARGE._replace(pixels=(65, 33)),
    LARGE._replace(n=0),
)


def test_where_it_is_faster_whatever_the_batch(native, monkeypatch):
    on(monkeypatch, "9.0")
    for layers, wanted in (
        (BOTH, (True, True)), (GRADIENTS, (False, True)), (NEITHER, (False, False))
    ):  # fmt: skip
        for layer in layers:
            for n in (1, 2, 7, 256) if layer.n else (0,):
                ops = ("fprop", "dgrad")
                found = [planned(layer._replace(n=n), op) for op in ops]
                assert tuple(plan is not None for plan in found) == wanted, layer


def test_options_and_gpus(native, monkeypatch):
    on(monkeypatch, "9.0")
    assert planned(LARGE, algorithm="implicit_gemm") is not None
    assert planned(LARGE, algorithm="cudnn") is None
    assert planned(LARGE, workspace_limit=1000) is None
    elu = LARGE._replace(activation="elu")
    assert planned(elu) is not None and planned(elu, "dgrad") is None
    deep = static_of(LARGE)
    g = deep.params.geometry._replace(pad=(1, 1, 1))  # of which nothing is left
    deep = deep._replace(params=dataclasses.replace(deep.params, geometry=g))
    for op in ("fprop", "dgrad"):
        assert norm_act_parts.plan(deep, LARGE.dtype, "cuda", op) is None
    without = static_of(LARGE, workspace_limit=0)._replace(statistics=None)
    assert norm_act_parts.plan(without, LARGE.dtype, "cuda") is not None
    strided = static_of(LARGE)
    g = strided.params.geometry._replace(stride=(1, 2, 2), P=32, Q=32)
    strided = strided._replace(params=dataclasses.replace(strided.params, geometry=g))
    for op in ("fprop", "dgrad"):
        assert norm_act_parts.plan(strided, LARGE.dtype, "cuda", op) is None
    on(monkeypatch, "8.0")
    assert planned(LARGE) is None


def test_explain_says_so(native, monkeypatch):
    on(monkeypatch, "9.0")
    monkeypatch.setattr(targets, "default_platform", lambda: "cuda")
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in LARGE.shapes)
    scale = jax.ShapeDtypeStruct((3, 128), np.float32)

    def layer(x, w, scale, groups=32):
        return jcb.norm_act_conv(
            x, w, scale=scale, activation="silu", statistics=groups
        )

    (row,) = jcb.explain(layer, x, w, scale, platform="cuda")
    assert row.engine == "implicit_gemm" and row.workspace_bytes > 0
    for word in ("scale and shift", "silu", "sums of the result", "in the same kernel"):
        assert word in row.reason
    rows = jcb.explain(
        jax.grad(lambda *a: (layer(*a)[0].astype("float32") ** 2).sum(), (0, 1, 2)),
        *(x, w, scale),
        platform="cuda",
    )
    assert [row.op for row in rows] == ["fprop", "dgrad", "wgrad"]
    assert "derivative of silu" in rows[1].reason
    rows = jcb.explain(layer, x, w, scale, platform="cpu")
    assert [row.op for row in rows] == ["fprop"]
    assert "same kernel" not in rows[0].reason


@pytest.mark.parametrize(
    ("padding", "is_one"),
    [("SAME", True), (("CAUSAL", "SAME"), True), (("SAME", "EDGE"), False)],
)
def test_names_of_zeros_are_padding_of_the_kernel(native, monkeypatch, padding, is_one):
    on(monkeypatch, "9.0")
    monkeypatch.setattr(targets, "default_platform", lambda: "cuda")
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in LARGE.shapes)

    def layer(x, w):
        return jcb.norm_act_conv(x, w, activation="silu", padding=padding)

    (row,) = jcb.explain(layer, x, w, platform="cuda")
    assert ("in the same kernel" in row.reason) == is_one
