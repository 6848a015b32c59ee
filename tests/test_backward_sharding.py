# SPDX-License-Identifier: Apache-2.0
"""Backward of a layer with relu by y's signs, its arrays cut over 8 virtual devices.

The CPU has no kernel for the pass over dy: a stand-in notes what a device is asked
for, and XLA computes it.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from problems import whole
from sharded import assert_same, assert_spec, collectives, put

import jax_convbatch as jc
from jax_convbatch._layers import act_grad, fused

SMALL = functools.partial(whole, most=1)


def operands(residual, c=8, k=64):
    shapes = [(16, 3, 4, c), (3, 3, c, k), (k,), *[(16, 3, 4, k)] * (1 + residual)]
    return [SMALL(i, s, "float32") for i, s in enumerate(shapes)]


def layer(x, w, bias, residual=None):
    return jc.conv_bias_act(x, w, bias, residual=residual, activation="relu")


def gradients(*args):
    """Of every argument but the last, dy."""
    return jax.vjp(layer, *args[:-1])[1](args[-1])


CALLS = []  # shapes of dy
NUMBERS = itertools.count()


def noted(number, platform, activation, kept, bias, saved, dy):
    """`number`: of the test, so that none finds what another one partitioned."""
    assert saved.dtype == np.uint8
    CALLS.append(dy.shape)
    return act_grad._stock_cotangent(activation, kept, bias, saved, dy)


@pytest.fixture
def calls(monkeypatch):
    """What devices are asked for, if there were such a kernel."""
    jax.clear_caches()
    CALLS.clear()
    monkeypatch.setattr(fused, "_keeps_signs", lambda *a, **k: True)
    monkeypatch.setattr(act_grad, "_is_native", lambda *a: True)
    local = functools.partial(noted, next(NUMBERS))
    monkeypatch.setattr(act_grad, "_local_cotangent", local)
    return CALLS


# How x, w and bias are cut, and y: by samples, by output channels, by input channels.
CUTS = {
    "samples": (P("data"), P(), P(), P("data")),
    "samples over all": (P(("data", "model")), P(), P(), P(("data", "model"))),
    "output channels": (
        *(P(), P(None, None, None, "model"), P("model")),
        P(None, None, None, "model"),
    ),
    "input channels": (
        *(P(None, None, None, "model"), P(None, None, "model"), P(), P()),
    ),
    "samples and output channels": (
        *(P("data"), P(None, None, None, "model"), P("model")),
        P("data", None, None, "model"),
    ),
}
PARTS = {
    "samples": (4, 3, 4, 64),
    "samples over all": (2, 3, 4, 64),
    "output channels": (16, 3, 4, 32),
    "input channels": (16, 3, 4, 64),
    "samples and output channels": (4, 3, 4, 32),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_layer_has_the_gradients_of_a_whole_one(calls, mesh_2d, cut, residual):
    args = operands(residual)
    want = jax.jit(gradients)(*args)
    x, w, bias, y = CUTS[cut]
    sharded = put(mesh_2d, args, x, w, bias, *[y] * (1 + residual))
    calls.clear()
    compiled = jax.jit(gradients).lower(*sharded).compile()
    # The whole is traced, too, and not run.
    assert {*calls} == {PARTS[cut], (16, 3, 4, 64)}
    assert collectives(compiled) <= {"all-reduce"}
    assert "dynamic-slice" not in compiled.as_text()
    found = compiled(*sharded)
    assert_same(found, want)
    assert_spec(found[0], *x)
    assert_spec(found[1], *w)


def test_signs_are_not_cut_within_a_byte(calls, mesh_2d):
    """Of 8 filters each of the devices along "model" would have half of one."""
    args = operands(False, k=8)
    sharded = put(mesh_2d, args, *CUTS["output channels"])
    assert_same(jax.jit(gradients)(*sharded), jax.jit(gradients)(*args))


@pytest.mark.parametrize("taps, stride", [(1, 1), (1, 2), (3, 1)])
def test_rows_are_sent_where_a_neighbour_needs_them(calls, mesh, taps, stride):
    shapes = [
        (2, 8 * stride, 4, 8),
        (taps, taps, 8, 64),
        (64,),
        (2, 8, 4 // stride, 64),
    ]
    args = [SMALL(i, s, "float32") for i, s in enumerate(shapes)]

    def step(*args):
        fun = functools.partial(jc.conv_bias_act, activation="relu", strides=stride)
        return jax.vjp(fun, *args[:-1])[1](args[-1])

    want = jax.jit(step)(*args)
    rows = P(None, "data")
    sharded = put(mesh, args, rows, P(), P(), rows)
    calls.clear()
    compiled = jax.jit(step).lower(*sharded).compile()
    assert {*calls} == {(2, 8, 4 // stride, 64), (2, 1, 4 // stride, 64)}
    sent = set() if taps == 1 else {"collective-permute"}
    assert collectives(compiled) == {"all-reduce", *sent}
    found = compiled(*sharded)
    assert_same(found, want)
    assert_spec(found[0], *rows)


@pytest.mark.parametrize("manual", [("data",), ("data", "model")])
def test_under_shard_map_each_device_makes_the_call(calls, manual):
    args = operands(False)
    want = jax.jit(gradients)(*args)
    specs = (P("data"), P(), P(), P("data"))
    names, types = ("data", "model"), (AxisType.Auto,) * 2
    mesh = jax.make_mesh((8, 1), names, types, devices=jax.devices("cpu"))
    mapped = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=specs[:3],
        out_specs=P("data"),
        axis_names={*manual},
    )
    calls.clear()
    args = put(mesh, args, *specs)
    found = jax.jit(lambda *a: jax.vjp(mapped, *a[:-1])[1](a[-1]))(*args)
    assert {*calls} == {(2, 3, 4, 64)}
    assert_same(found, want)


def test_frozen_weights_cost_no_gradient(calls, mesh):
    args = put(mesh, operands(False), P("data"), P(), P(), P("data"))
    compiled = jax.jit(lambda *a: gradients(*a)[::2]).lower(*args).compile()
    assert "wgrad" not in compiled.as_text()
    np.testing.assert_array_equal(compiled(*args)[0], jax.jit(gradients)(*args)[0])
