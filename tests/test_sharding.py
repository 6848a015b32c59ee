# SPDX-License-Identifier: Apache-2.0
"""What is sharded stays where it is: 8 virtual devices, one kind of collective.

The devices are those of conftest.py. Wherever a result's order of summation does
not depend on the mesh (y and dx) it has to equal a single device's bit for bit;
for dw and db whole numbers make every order exact.
"""

import functools
import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from sharded import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    arrays,
    assert_same,
    assert_spec,
    collectives,
    layer,
    put,
    training_step,
)

import jax_convbatch as jc
from jax_convbatch._sharding import meshes

MODELS = {
    "layer": {},
    "scaled": {"scale": np.arange(1, 5, dtype=np.float32)},
    "strided": {"strides": 2, "padding": ((0, 1), (2, 0))},
    "grouped": {"groups": 2},
    "dilated": {"dilation": 2, "input_dilation": (1, 2), "padding": 1},
    "channels first": {"dimension_numbers": CHANNELS_FIRST},
    "sliced": {"workspace_limit": 100_000},
}


@pytest.mark.parametrize("model", MODELS)
def test_a_sharded_batch_needs_all_reduces_only(mesh, model):
    kwargs = MODELS[model]
    layout = kwargs.get("dimension_numbers", CHANNELS_LAST)
    step = training_step(functools.partial(layer, **kwargs))
    args = arrays(groups=kwargs.get("groups", 1), layout=layout)
    sharded = put(mesh, args, P("data"), P(), P())
    compiled = jax.jit(step).lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert "dynamic-slice" not in compiled.as_text()
    (loss, y), (dx, dw, db) = compiled(*sharded)
    assert_spec(y, "data")
    assert_spec(dx, "data")
    assert_spec(dw)
    assert_spec(db)
    (want_loss, want_y), (want_dx, want_dw, want_db) = jax.jit(step)(*args)
    assert_same((y, dx), (want_y, want_dx))
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    assert_close(loss, want_loss)
    assert_close(dw, want_dw)
    assert_close(db, want_db)


@pytest.mark.parametrize("model", MODELS)
def test_whole_numbers_are_exact_on_any_number_of_devices(mesh, model):
    kwargs = MODELS[model]
    layout = kwargs.get("dimension_numbers", CHANNELS_LAST)
    step = jax.jit(training_step(functools.partial(layer, **kwargs)))
    args = arrays(whole, groups=kwargs.get("groups", 1), layout=layout)
    assert_same(step(*put(mesh, args, P("data"), P(), P())), step(*args))


@pytest.mark.parametrize("part", ["x", "y", "w"])
def test_parts_that_are_not_even_are_gathered(mesh, part):
    """12 samples, or 4 filters, over 8 devices, as a constraint within jit may say."""

    def cut(name, a):
        spec = P(*[None] * 3, "data") if name == "w" else P("data")
        sharding = NamedSharding(mesh, spec)
        return jax.lax.with_sharding_constraint(a, sharding) if part == name else a

    def fun(x, w, bias):
        return cut("y", layer(cut("x", x), cut("w", w), bias))

    args = arrays(whole, batch=12)
    found = jax.jit(training_step(fun))(*args)
    assert_same(found, jax.jit(training_step(layer))(*args))


def test_the_forward_pass_needs_no_collective(mesh):
    x, w, bias = put(mesh, arrays(), P("data"), P(), P())
    assert collectives(jax.jit(layer).lower(x, w, bias).compile()) == set()


def test_one_call_of_a_sharded_layer_runs_one_custom_call_a_device(mesh):
    """The devices share the work: each one's custom call has an eighth of it."""
    x, w, bias = put(mesh, arrays(), P("data"), P(), P())
    text = jax.jit(layer).lower(x, w, bias).compile().as_text()
    (call,) = re.findall(r".*custom-call.*jax_convbatch_implicit_gemm_fprop.*", text)
    assert "f32[2,6,6,4]" in call


def test_layers_of_one_kind_are_partitioned_once(mesh, monkeypatch):
    """XLA asks for each call; what it is told is worked out once."""
    asked = []

    def counted(of):
        asked.append(of)
        return fine_mesh(of)

    fine_mesh = meshes.fine_mesh
    monkeypatch.setattr(meshes, "fine_mesh", counted)
    x, w = normal(0, (16, 6, 6, 8), "float32"), normal(1, (3, 3, 8, 8), "float32")

    def net(x, w):
        for _ in range(9):
            x = jc.conv(x, w)
        return x.sum()

    args = put(mesh, (x, w), P("data"), P())
    jax.jit(jax.grad(net, (0, 1))).lower(*args).compile()
    assert len(asked) <= 6  # fprop, dgrad, wgrad; y is cut, or the last one's ones are


def test_without_shardy_every_device_does_the_whole(mesh):
    args = arrays(whole)
    step = training_step(layer)
    want = jax.jit(step)(*args)
    old = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        found = jax.jit(step)(*put(mesh, args, P("data"), P(), P()))
    finally:
        jax.config.update("jax_use_shardy_partitioner", old)
    assert_same(found, want)


def test_in_shardings_are_kept(mesh):
    shardings = [NamedSharding(mesh, s) for s in (P("data"), P(), P())]
    step = jax.jit(training_step(layer), in_shardings=shardings)
    args = arrays(whole)
    assert collectives(step.lower(*args).compile()) == {"all-reduce"}
    assert_same(step(*args), jax.jit(training_step(layer))(*args))


SPECS_2D = {
    "batch and filters": (P("data"), P(None, None, None, "model"), P("model")),
    "filters": (P(), P(None, None, None, "model"), P("model")),
    "batch over both": (P(("data", "model")), P(), P()),
    "filters over data": (P("model"), P(None, None, None, "data"), P("data")),
    "channels": (P("data", None, None, "model"), P(None, None, "model"), P()),
}


@pytest.mark.parametrize("specs", SPECS_2D)
def test_batch_filters_and_channels_stay_sharded(mesh_2d, specs):
    specs = SPECS_2D[specs]
    step = jax.jit(training_step(layer))
    args = arrays(whole)
    sharded = put(mesh_2d, args, *specs)
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    got = compiled(*sharded)
    _, (dx, dw, db) = got
    for array, spec in zip((dx, dw, db), specs, strict=True):
        assert_spec(array, *spec)
    assert_same(got, step(*args))


def test_sharded_filters_give_sharded_channels_without_a_collective(mesh_2d):
    w_spec = P(None, None, None, "model")
    x, w, bias = put(mesh_2d, arrays(), P("data"), w_spec, P("model"))
    compiled = jax.jit(layer).lower(x, w, bias).compile()
    assert collectives(compiled) == set()
    y = compiled(x, w, bias)
    assert_spec(y, "data", None, None, "model")


# Shardings that the rule does not keep must be undone, not miscomputed.
UNKEPT = {
    "taps": (P(), P(None, None, "model", "data"), P(), 1),
    "channels of groups": (P(None, None, None, "data"), P(), P(), 2),
    "filters of groups": (P("data"), P(None, None, None, "model"), P("model"), 2),
    "batch of groups": (P("data"), P(), P(), 2),  # kept; jax.lax's dw is wrong here
    "one axis twice": (P("data"), P(None, None, None, "data"), P("data"), 1),
}


@pytest.mark.parametrize("specs", UNKEPT)
def test_any_other_sharding_gives_the_same_numbers(mesh_2d, specs):
    *specs, groups = UNKEPT[specs]
    step = jax.jit(training_step(functools.partial(layer, groups=groups)))
    args = arrays(whole, groups=groups)
    assert_same(step(*put(mesh_2d, args, *specs)), step(*args))


@pytest.mark.parametrize("batch", [1, 3, 9, 14])
def test_a_batch_that_does_not_divide(mesh, batch):
    """XLA pads the last device's part: a sum must not see the padding."""
    args = arrays(whole, batch)
    sharding = NamedSharding(mesh, P("data"))

    @jax.jit
    def step(x, w, bias):
        def fun(x, w, bias):
            x = jax.lax.with_sharding_constraint(x, sharding)
            y = layer(x + 1, w, bias)
            return jax.lax.with_sharding_constraint(y, sharding)

        return training_step(fun)(x, w, bias)

    want = jax.jit(training_step(lambda x, w, bias: layer(x + 1, w, bias)))(*args)
    assert_same(step(*args), want)


@pytest.mark.parametrize("remat", [False, True])
def test_a_scan_of_layers_needs_all_reduces_only(mesh, remat):
    x = normal(0, (16, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4
    bias = normal(2, (3, 4), "float32")

    def stack(x, w, bias):
        def body(x, parameters):
            return layer(x, *parameters), None

        return jax.lax.scan(jax.remat(body) if remat else body, x, (w, bias))[0]

    step = jax.jit(training_step(stack))
    sharded = put(mesh, (x, w, bias), P("data"), P(), P())
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    (_, y), (dx, *_) = compiled(*sharded)
    (_, want_y), (want_dx, *_) = step(x, w, bias)
    assert_spec(dx, "data")
    assert_same((y, dx), (want_y, want_dx))


def test_a_vmapped_layer_keeps_both_batches_sharded(mesh_2d):
    """vmap over models, each with its own filters, models sharded."""
    x = whole(0, (2, 8, 5, 5, 4), "float32")
    w = whole(1, (2, 3, 3, 4, 4), "float32")
    bias = whole(2, (2, 4), "float32")
    step = jax.jit(training_step(jax.vmap(layer)))
    sharded = put(mesh_2d, (x, w, bias), P(None, "data"), P(), P())
    compiled = step.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert_same(compiled(*sharded), step(x, w, bias))


@pytest.mark.parametrize("where", ["x", "all"])
def test_spmd_axis_name_shards_the_mapped_axis(mesh_2d, where):
    x = whole(0, (4, 2, 5, 5, 4), "float32")
    _, w, bias = arrays(whole, groups=2)
    dims = (0, None, None)
    if where == "all":
        w, bias = whole(1, (4, 3, 3, 4, 4), "float32"), whole(2, (4, 4), "float32")
        dims = (0, 0, 0)

    def inner(x, w, bias):
        spec = NamedSharding(mesh_2d, P("model"))
        return jax.lax.with_sharding_constraint(layer(x, w, bias), spec)

    step = training_step(jax.vmap(inner, dims, spmd_axis_name="data"))
    want = training_step(jax.vmap(layer, dims))(x, w, bias)
    assert_same(jax.jit(step)(x, w, bias), want)
