# SPDX-License-Identifier: Apache-2.0
"""Inside shard_map and pmap the gradients are those of a single device."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from sharded import (
    CHANNELS_LAST,
    arrays,
    assert_same,
    collectives,
    layer,
    put,
    training_step,
)

import jax_convbatch as jc

LAYERS = {
    "layer": layer,
    "general": lambda x, w, bias: (
        bias
        + jc.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)
    ),
}
each_layer = pytest.mark.parametrize("fun", LAYERS.values(), ids=LAYERS.keys())
check_vma = pytest.mark.parametrize("check_vma", [True, False])


def over_samples(fun, mesh, check_vma, replicated=2):
    """fun of x, shared by samples, and of arrays that every device has whole."""
    return jax.shard_map(
        fun,
        mesh=mesh,
        in_specs=(P("data"), *[P()] * replicated),
        out_specs=P("data"),
        check_vma=check_vma,
    )


@each_layer
@check_vma
def test_the_gradient_of_a_shard_map_is_a_single_devices(mesh, fun, check_vma):
    mapped = over_samples(fun, mesh, check_vma)
    args = arrays(whole)
    want = jax.jit(training_step(fun))(*args)
    assert_same(jax.jit(training_step(mapped))(*args), want)


@each_layer
def test_a_gradient_inside_a_shard_map_is_summed_over_the_devices(mesh, fun):
    """With check_vma JAX sums the cotangents of replicated operands itself."""

    def step(x, w, bias):
        (loss, y), gradients = training_step(fun)(x, w, bias)
        return (jax.lax.psum(loss, "data"), y), gradients

    data, none = P("data"), P()
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(data, none, none),
        out_specs=((none, data), (data, none, none)),
    )
    args = arrays(whole)
    compiled = jax.jit(mapped).lower(*put(mesh, args, data, none, none)).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert_same(jax.jit(mapped)(*args), jax.jit(training_step(fun))(*args))


@each_layer
def test_without_check_vma_the_user_sums(mesh, fun):
    def step(x, w, bias):
        (loss, y), (dx, *rest) = training_step(fun)(x, w, bias)
        loss, dw, db = jax.lax.psum((loss, *rest), "data")
        return (loss, y), (dx, dw, db)

    data, none = P("data"), P()
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(data, none, none),
        out_specs=((none, data), (data, none, none)),
        check_vma=False,
    )
    args = arrays(whole)
    assert_same(jax.jit(mapped)(*args), jax.jit(training_step(fun))(*args))


@check_vma
def test_a_shard_map_over_filters(mesh_2d, check_vma):
    filters = P(None, None, None, "model")
    mapped = jax.shard_map(
        layer,
        mesh=mesh_2d,
        in_specs=(P("data"), filters, P("model")),
        out_specs=P("data", None, None, "model"),
        check_vma=check_vma,
    )
    args = arrays(whole)
    want = jax.jit(training_step(layer))(*args)
    assert_same(jax.jit(training_step(mapped))(*args), want)


@pytest.mark.parametrize("fun", LAYERS.values())
@check_vma
def test_forward_mode_in_a_shard_map(mesh, fun, check_vma):
    mapped = over_samples(fun, mesh, check_vma)
    args = arrays(whole)
    want = jax.jvp(fun, args, args)
    assert_same(jax.jvp(jax.jit(mapped), args, args), want)


@check_vma
def test_scan_and_remat_in_a_shard_map(mesh, check_vma):
    x = normal(0, (16, 5, 5, 4), "float32")
    w = normal(1, (3, 3, 3, 4, 4), "float32") / 4

    def stack(x, w):
        @jax.remat
        def body(x, w):
            return jc.conv_bias_act(x, w, activation="tanh"), None

        return jax.lax.scan(body, x, w)[0]

    mapped = over_samples(stack, mesh, check_vma, replicated=1)
    got, want = (
        jax.jit(jax.grad(lambda x, f=f: (f(x, w) ** 2).sum()))(x)
        for f in (mapped, stack)
    )
    assert_same(got, want)


def test_pmap_of_a_training_step():
    x, w, bias = arrays(whole)
    x = x.reshape(8, 2, *x.shape[1:])

    def step(x, w, bias):
        (loss, y), (dx, *rest) = training_step(layer)(x, w, bias)
        return (jax.lax.psum(loss, "i"), y), (dx, *jax.lax.psum(rest, "i"))

    (loss, y), (dx, dw, db) = jax.pmap(step, axis_name="i", in_axes=(0, None, None))(
        x, w, bias
    )
    want = jax.jit(training_step(layer))(x.reshape(16, *x.shape[2:]), w, bias)
    got = (
        (loss[0], y.reshape(16, *y.shape[2:])),
        (dx.reshape(16, *dx.shape[2:]), dw[0], db[0]),
    )
    assert_same(got, want)


def in_groups(fun, manual, mesh):
    """`fun(x, w, bias)` in a shard_map over mesh axis `manual` alone."""
    return jax.shard_map(
        fun,
        mesh=mesh,
        in_specs=(P(manual), P(), P()),
        out_specs=P(manual),
        axis_names={manual},
    )


@each_layer
@pytest.mark.parametrize("manual, rest", [("data", "model"), ("model", "data")])
def test_axes_that_are_not_manual_cut_the_batch(mesh_2d, fun, manual, rest):
    args = arrays(whole, batch=32)
    step = training_step(in_groups(fun, manual, mesh_2d))
    sharded = put(mesh_2d, args, P((manual, rest)), P(), P())
    compiled = jax.jit(step).lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    assert_same(compiled(*sharded), jax.jit(training_step(fun))(*args))


# Of x and w, beside the manual axis "data" that x's batch has.
FREE = {
    "the batch over both": (("data", "b", "c"), P()),
    "the batch over both, in turn": (("data", "c", "b"), P()),
    "the batch over one": (("data", "b"), P()),
    "the batch and filters": (("data", "c"), P(None, None, None, "b")),
    "input channels": (("data",), P(None, None, ("b", "c"))),
    "input channels and filters": (("data",), P(None, None, "c", "b")),
}


@each_layer
@pytest.mark.parametrize("names", ["data b c", "b data c", "c b data"])
@pytest.mark.parametrize("free", FREE)
def test_other_axes_than_manual_ones_change_no_number(fun, names, free):
    types = (AxisType.Auto,) * 3
    devices = jax.devices("cpu")
    mesh = jax.make_mesh((2, 2, 2), names.split(), axis_types=types, devices=devices)
    batch, of_w = FREE[free]
    args = arrays(whole)
    step = jax.jit(training_step(in_groups(fun, "data", mesh)))
    found = step(*put(mesh, args, P(batch), of_w, P()))
    assert_same(found, jax.jit(training_step(fun))(*args))


@each_layer
@pytest.mark.parametrize("sizes", [(8, 1), (1, 8)])
def test_other_axes_may_have_one_device(fun, sizes):
    """As in the mesh of a program that cuts models, too, where there are more."""
    devices, types = jax.devices("cpu"), (AxisType.Auto,) * 2
    names = ("data", "model") if sizes[0] > 1 else ("model", "data")
    mesh = jax.make_mesh(sizes, names, axis_types=types, devices=devices)
    args = arrays(whole)
    step = jax.jit(training_step(in_groups(fun, "data", mesh)))
    assert_same(step(*args), jax.jit(training_step(fun))(*args))


@each_layer
@pytest.mark.parametrize("jitted", [True, False])
def test_gradients_of_empty_images_are_zeros(mesh_2d, fun, jitted):
    """XLA cannot compile an operation on empty arrays alone here, so there is none."""
    x, w, bias = arrays(whole)
    x = x[:, :0]

    def gradients(*args):
        y, vjp = jax.vjp(fun, *args)
        return [a[None] for a in vjp(y)]

    step = in_groups(gradients, "data", mesh_2d)
    step = jax.jit(step) if jitted else step
    dx, dw, db = step(x, w, bias)
    assert dx.size == 0
    assert_same(dw, [0 * w] * mesh_2d.shape["data"])
    assert_same(db, [0 * bias] * mesh_2d.shape["data"])


def test_a_sum_of_nothing_is_zeros_where_other_axes_are_cut(mesh_2d):
    """x without channels, jitted: where jax.lax cannot be compiled."""
    x, w = jnp.ones((4, 3, 3, 0)), jnp.ones((3, 3, 0, 8))
    mapped = jax.shard_map(
        lambda x, w: jc.conv(x, w),
        mesh=mesh_2d,
        in_specs=(P("data"), P()),
        out_specs=P("data"),
        axis_names={"data"},
    )
    assert_same(jax.jit(mapped)(x, w), jnp.zeros((4, 3, 3, 8)))
