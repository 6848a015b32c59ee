# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution under vmap, sharding, shard_map and every derivative."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_oracle import arrays, problem
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from sharded import assert_spec, collectives, put

import jax_convbatch as jc

PROBLEM = problem((2, 4, 5, 4), (2, 3, 2, 6), groups=2, offset_groups=2)
ARGUMENTS = ("x", "offset", "w", "bias", "mask")


def fun(x, offset, w, bias, mask):
    return jc.deform_conv(x, offset, w, bias, mask, **PROBLEM.kwargs)


def results(x, offset, w, bias, mask, dy):
    y, pull = jax.vjp(fun, x, offset, w, bias, mask)
    return y, *pull(dy)


def stacked(mapped, size=3):
    """Arguments and dy, those in `mapped` with a leading axis."""
    sets = [arrays(PROBLEM, seed=i).cast("float32") for i in range(size)]
    return [
        np.stack([getattr(s, name) for s in sets])
        if name in mapped
        else getattr(sets[0], name)
        for name in (*ARGUMENTS, "dy")
    ]


@pytest.mark.parametrize(
    "mapped",
    [("x", "dy"), ("offset",), ("w", "dy"), ("mask", "bias"), (*ARGUMENTS, "dy")],
    ids="-".join,
)
def test_vmap_is_a_loop(mapped):
    args = stacked(mapped)
    axes = [0 if name in mapped else None for name in (*ARGUMENTS, "dy")]
    got = jax.jit(jax.vmap(results, axes))(*args)
    one = jax.jit(results)
    for i in range(3):
        want = one(*(a if d is None else a[i] for a, d in zip(args, axes, strict=True)))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g[i], w)


def test_vmap_of_the_forward_pass_stays_one_call():
    args = stacked(("x", "offset"))[:5]
    mapped = jax.vmap(fun, (0, 0, None, None, None))
    (row,) = jc.explain(mapped, *args)
    assert (row.op, row.engine) == ("deform_fprop", "im2col_gemm")
    assert row.geometry.startswith("6x4x5x4 * 2x3x2x6")


def test_vmap_other_axes_and_none_left(x64):
    x, offset, w, bias, mask, _ = stacked(("x", "mask"))
    want = jax.vmap(fun, (0, None, None, None, 0))(x, offset, w, bias, mask)
    got = jax.vmap(fun, (2, None, None, None, 4), 1)(
        np.moveaxis(x, 0, 2), offset, w, bias, np.moveaxis(mask, 0, 4)
    )
    np.testing.assert_array_equal(np.moveaxis(got, 1, 0), want)
    none = jax.vmap(fun, (0, None, None, None, 0))(x[:0], offset, w, bias, mask[:0])
    assert none.shape == (0, *PROBLEM.y)


def test_scan_and_remat():
    args = [jnp.asarray(a) for a in stacked(("x",))]

    def loss(w):
        def step(total, x):
            y = fun(x, args[1], w, args[3], args[4])
            return total + (y**2).sum(), None

        return jax.lax.scan(jax.checkpoint(step), 0.0, args[0])[0]

    def loop(w):
        return sum((fun(x, args[1], w, args[3], args[4]) ** 2).sum() for x in args[0])

    got, want = (
        jax.jit(jax.value_and_grad(loss))(args[2]),
        jax.value_and_grad(loop)(args[2]),
    )
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)


# --- sharding -------------------------------------------------------------------

BATCH = problem((16, 4, 5, 4), (2, 3, 2, 6), groups=2, offset_groups=2)


def step(x, offset, w, bias, mask):
    def loss(*args):
        y = fun(*args)
        return (y**2).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(
        x, offset, w, bias, mask
    )


def operands():
    return arrays(BATCH).cast("float32")[:5]


SPECS = (P("data"), P("data"), P(), P(), P("data"))


@functools.cache
def whole_step():
    return jax.jit(step)(*operands())


def test_a_batch_stays_sharded(mesh):
    args = put(mesh, operands(), *SPECS)
    compiled = jax.jit(step).lower(*args).compile()
    assert collectives(compiled) == {"all-reduce"}
    (_, y), grads = got = compiled(*args)
    assert_spec(y, "data")
    for grad, spec in zip(grads, SPECS, strict=True):
        assert_spec(grad, *spec)
    jax.tree.map(np.testing.assert_array_equal, got, whole_step())


def test_sharded_channels_are_gathered_and_right(mesh_2d):
    specs = (P("data", None, None, "model"), P("data"), P(), P(), P("data"))
    args = put(mesh_2d, operands(), *specs)
    got = jax.jit(step)(*args)
    jax.tree.map(np.testing.assert_array_equal, got, whole_step())


def test_forward_mode_sharded(mesh):
    args = operands()
    tangents = arrays(BATCH, seed=1).cast("float32")[:5]

    def forward(args, tangents):
        return jax.jvp(fun, args, tangents)

    want = jax.jit(forward)(tuple(args), tuple(tangents))
    sharded = [tuple(put(mesh, values, *SPECS)) for values in (args, tangents)]
    compiled = jax.jit(forward).lower(*sharded).compile()
    assert not collectives(compiled)
    jax.tree.map(np.testing.assert_array_equal, compiled(*sharded), want)


def test_shard_map(mesh):
    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=SPECS,
        out_specs=((P(), P("data")), SPECS),
    )
    def mapped(*args):
        def loss(*args):
            y = fun(*args)
            return jax.lax.psum((y**2).sum(), "data"), y

        return jax.value_and_grad(loss, argnums=range(5), has_aux=True)(*args)

    jax.tree.map(np.testing.assert_array_equal, mapped(*operands()), whole_step())


def test_an_explicit_mesh(explicit_mesh):
    args = [
        jax.device_put(a, jax.NamedSharding(explicit_mesh, spec))
        for a, spec in zip(operands(), SPECS, strict=True)
    ]
    (_, y), grads = got = jax.jit(step)(*args)
    assert jax.typeof(y).sharding.spec[0] == "data"
    assert jax.typeof(grads[0]).sharding.spec[0] == "data"
    jax.tree.map(
        np.testing.assert_array_equal, jax.device_get(got), jax.device_get(whole())
    )


def whole():
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return whole_step()


# --- both modes -----------------------------------------------------------------


def test_both_modes_and_orders(platform, x64):
    p = problem((1, 3, 4, 4), (2, 1, 2, 4), groups=2, offset_groups=4, padding=(1, 0))
    a = arrays(p, seed=2, exact=False, reach=1)

    @jax.jit
    def fun(x, offset, w, bias, mask):
        return jc.deform_conv(x, offset, w, bias, mask, activation="tanh", **p.kwargs)

    args = (a.x, a.offset, a.w, a.bias, a.mask)
    check_grads(fun, args, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


def test_jacobians_agree(platform, x64):
    p = problem((1, 2, 3, 2), (2, 1, 2, 1), padding=0)
    a = arrays(p, seed=4, exact=False, reach=1)

    def fun(x, offset, mask):
        return jc.deform_conv(x, offset, a.w, mask=mask, **p.kwargs)

    def penalty(*args):
        return (fun(*args) ** 2).sum()

    args = (a.x, a.offset, a.mask)
    for function in (fun, jax.grad(penalty, 1)):
        forward = jax.jit(jax.jacfwd(function, (0, 1, 2)))(*args)
        reverse = jax.jit(jax.jacrev(function, (0, 1, 2)))(*args)
        for f, r in zip(forward, reverse, strict=True):
            np.testing.assert_allclose(f, r, atol=1e-10)
