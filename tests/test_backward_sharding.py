# SPDX-License-Identifier: Apache-2.0
"""Backward of a layer in one call, its arrays cut over 8 virtual devices.

The CPU has no such call: a stand-in notes what a device is asked for, and the
primitives compute it.
"""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from problems import whole
from sharded import assert_same, assert_spec, collectives, put

import jax_convbatch as jc
from jax_convbatch._layers import fused, one_pass

SMALL = functools.partial(whole, most=1)


def operands(residual, c=8, k=64):
    shapes = [(16, 3, 4, c), (3, 3, c, k), (k,), *[(16, 3, 4, k)] * (1 + residual)]
    return [SMALL(i, s, "float32") for i, s in enumerate(shapes)]


def layer(x, w, bias, residual=None):
    return jc.conv_bias_act(x, w, bias, residual=residual, activation="relu")


def gradients(*args):
    """Of every argument but the last, dy."""
    return jax.vjp(layer, *args[:-1])[1](args[-1])


@pytest.fixture
def calls(monkeypatch):
    """Sizes of the calls that devices make, if there were such calls."""
    jax.clear_caches()
    found = []

    def one_call(platform, params, dtype, residual):
        geometry = params.geometry
        found.append((geometry.N, geometry.C, geometry.K))
        return functools.partial(
            one_pass._local, platform, params, residual, frozenset("CK"), {}
        )

    monkeypatch.setattr(one_pass, "workspace", lambda params, dtype: 0)
    monkeypatch.setattr(fused, "_keeps_signs", lambda *a, **k: True)
    monkeypatch.setattr(one_pass, "_one_call", one_call)
    return found


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
ONE_CALL = {"samples": (4, 8, 64), "samples over all": (2, 8, 64)}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_layer_has_the_gradients_of_a_whole_one(calls, mesh_2d, cut, residual):
    args = operands(residual)
    want = jax.jit(gradients)(*args)
    x, w, bias, y = CUTS[cut]
    sharded = put(mesh_2d, args, x, w, bias, *[y] * (1 + residual))
    calls.clear()
    compiled = jax.jit(gradients).lower(*sharded).compile()
    # One call for each device where only the batch is cut, else the primitives; the
    # whole is traced, too, and not run.
    assert {*calls} - {(16, 8, 64)} == ({ONE_CALL[cut]} if cut in ONE_CALL else set())
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
def test_rows_are_one_call_where_no_neighbour_is_needed(calls, mesh, taps, stride):
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
    assert len(calls) == (2 if taps == 1 else 1)  # one of them is of the whole
    sent = set() if taps == 1 else {"collective-permute"}
    assert collectives(compiled) == {"all-reduce", *sent}
    found = compiled(*sharded)
    assert_same(found, want)
    assert_spec(found[0], *rows)


def test_it_is_chosen_for_what_a_device_will_have(monkeypatch):
    """Whole it is too large for one call, and its eighth is not."""
    jax.clear_caches()
    largest = []

    def workspace(params, dtype):
        largest.append(params.geometry.N)
        return 0 if params.geometry.N <= 2 else None

    monkeypatch.setattr(one_pass, "workspace", workspace)
    monkeypatch.setattr(fused, "_keeps_signs", lambda *a, **k: True)
    args = operands(False)
    names = [str(e.primitive) for e in jax.make_jaxpr(gradients)(*args).eqns]
    assert names == ["conv_layer", "conv_layer_cotangent"]
    assert largest == [16, 2]
    alone = [a[:15] if a.ndim == 4 and len(a) == 16 else a for a in args]
    names = [str(e.primitive) for e in jax.make_jaxpr(gradients)(*alone).eqns]
    assert "conv_layer_cotangent" not in names


def test_under_shard_map_each_device_makes_the_call(calls, mesh):
    args = operands(False)
    want = jax.jit(gradients)(*args)
    specs = (P("data"), P(), P(), P("data"))
    mapped = jax.shard_map(layer, mesh=mesh, in_specs=specs[:3], out_specs=P("data"))
    calls.clear()
    args = put(mesh, args, *specs)
    found = jax.jit(lambda *a: jax.vjp(mapped, *a[:-1])[1](a[-1]))(*args)
    assert calls == [(2, 8, 64)]
    assert_same(found, want)


def test_frozen_weights_cost_no_gradient(calls, mesh):
    args = put(mesh, operands(False), P("data"), P(), P(), P("data"))
    compiled = jax.jit(lambda *a: gradients(*a)[::2]).lower(*args).compile()
    assert calls == []
    assert "wgrad" not in compiled.as_text()
    np.testing.assert_array_equal(compiled(*args)[0], jax.jit(gradients)(*args)[0])
