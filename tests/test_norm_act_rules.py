# SPDX-License-Identifier: Apache-2.0
"""What is around the kernels of norm_act_conv, with jax.numpy in their place.

Derivatives, vmap, and batches that are sharded: which arrays and attributes the calls
are given, and what is made of their results.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from problems import normal
from sharded import collectives, compiled_and_result, put

import jax_convbatch as jcb
from jax_convbatch import norms
from jax_convbatch._layers import activations, norm_act, norm_act_grad, norm_act_parts
from jax_convbatch._native import native, targets
from jax_convbatch._tune import tune

N, C, K = 8, 4, 6
PLAN = {"workspace": 64, "tile_n": 64, "preferred": True}


def convolve(h, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=numbers)


def sums(a, b, layer):
    """[the sums of a, of a b] as the handlers form them."""
    groups = int(layer["groups"])
    n, *_, channels = a.shape
    parts = [v.reshape(n, -1, groups, channels // groups) for v in (a, a * b)]
    if layer["by_sample"]:
        return [v.sum((1, 3)) for v in parts]
    assert groups == channels
    return [v.sum((0, 1, 3)) for v in parts]


def fprop(layer, x, w, scale, shift, *rest):
    fn = activations.lookup(layer["activation"])
    h = norm_act_parts.activated(fn and fn.fn, x, scale, shift)
    y = convolve(h, w) + sum(rest)
    return [y, *sums(y, y, layer)] if layer["groups"] else [y]


def gradient(layer, dy, w, scale, shift, x):
    fn = activations.lookup(layer["activation"])

    def activate(z):
        return fn.fn(z) if fn else z

    of_pixels = [a.reshape(-1, 1, 1, C) for a in (scale, shift)]
    z = x * of_pixels[0] + of_pixels[1]
    h, derivative = jax.vjp(activate, z)
    (dh,) = jax.vjp(lambda h: convolve(h, w), h)[1](dy)
    (dz,) = derivative(dh)
    return [dz, h, *sums(dz, x, layer)]


def in_place_of(called, name, target, results):
    """`native.ffi_call` that runs the two above."""

    def call(*arrays, geometry, layer):
        operation = target.removeprefix("jax_convbatch_implicit_gemm_norm_act_")
        called.append(operation)
        assert int(geometry["N"]) == arrays[0].shape[0]
        count = 4 if operation == "gradient" else 4 + layer["bias"] + layer["residual"]
        assert len(arrays) == count + (operation == "gradient")
        out = {"fprop": fprop, "gradient": gradient}[operation](layer, *arrays)
        if len(out) > 1:
            out.append(jnp.zeros(PLAN["workspace"], np.uint8))
        for got, want in zip(out, results, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
        return out

    return call


LOCAL_CALL = norm_act_grad.primitives.local_call


def on_the_cpu(op, platform, *rest):
    return LOCAL_CALL(op, "cpu", *rest)


@pytest.fixture
def called(monkeypatch):
    """Which of the kernels' calls were made."""
    names = []
    monkeypatch.setattr(targets, "default_platform", lambda: "cuda")
    for module in (norms, norm_act, norm_act_grad):
        monkeypatch.setattr(module, "plan", lambda *_: PLAN)
    replaced = functools.partial(in_place_of, names)
    ffi_call = native.ffi_call

    def either(name, target, results, **options):
        if "norm_act" in target:
            return replaced(name, target, results)
        return ffi_call(name, target, results, **options)

    monkeypatch.setattr(native, "ffi_call", either)
    monkeypatch.setattr(norm_act_grad.primitives, "local_call", on_the_cpu)
    return names


def operands(by_sample=True):
    factors = (N, C) if by_sample else (C,)
    return {
        "x": normal(0, (N, 5, 6, C), "float32"),
        "w": normal(1, (3, 3, C, K), "float32"),
        "scale": normal(2, factors, "float32"),
        "shift": normal(3, factors, "float32"),
        "bias": normal(4, (K,), "float32"),
        "residual": normal(5, (N, 5, 6, K), "float32"),
    }


def layer(given, statistics=None, activation="silu"):
    given = dict(given)
    x, w = given.pop("x"), given.pop("w")
    return jcb.norm_act_conv(
        x, w, **given, activation=activation, statistics=statistics
    )


def loss(given, statistics=None, activation="silu"):
    """Of the result, and of its sums where there are any."""
    y, *found = jax.tree.leaves(layer(given, statistics, activation))
    return (y * jnp.cos(y / 9)).sum() + sum((a * a).sum() / 1e4 for a in found)


def assert_near(got, want):
    for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        most = np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=2e-5 * most, rtol=2e-5)


CALLS = [
    (statistics, by_sample, activation)
    for statistics in (None, "channels", 3)
    for by_sample, activation in ((True, "silu"), (False, None), (False, "relu"))
]


def composed(function, *arguments):
    """Without the fixture: what jax_convbatch makes where there is no kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "plan", lambda *_: None)
        return function(*arguments)


@pytest.mark.parametrize(("statistics", "by_sample", "activation"), CALLS)
def test_results_and_gradients(called, statistics, by_sample, activation):
    given = operands(by_sample)
    both = functools.partial(layer, statistics=statistics, activation=activation)
    grad = jax.grad(
        functools.partial(loss, statistics=statistics, activation=activation)
    )
    want = composed(both, given), composed(grad, given)
    assert called == []
    assert_near((jax.jit(both)(given), jax.jit(grad)(given)), want)
    assert {*called} == {"fprop", "gradient"}


def test_other_derivatives(called):
    given = operands()
    dots = jax.tree.map(jnp.cos, given)
    call = functools.partial(layer, statistics=3)

    def forward(given):
        return jax.jvp(call, [given], [dots])[1]

    def second(given):
        grad = jax.grad(functools.partial(loss, statistics="channels"))
        return jax.jvp(grad, [given], [dots])[1]

    def some(x):
        return jax.grad(lambda x: loss({**given, "x": x}))(x)

    for function, argument in ((forward, given), (second, given), (some, given["x"])):
        assert_near(jax.jit(function)(argument), composed(function, argument))


@pytest.mark.parametrize("statistics", [None, "channels", 3])
@pytest.mark.parametrize("mapped", [("x",), ("x", "scale"), ("x", "shift", "residual")])
@pytest.mark.parametrize("by_sample", [True, False])
def test_a_mapped_batch_is_one_batch(called, statistics, mapped, by_sample):
    given = operands(by_sample)
    two = {name: jnp.stack([given[name], given[name] / 2], 1) for name in mapped}
    axes = {name: 1 if name in mapped else None for name in given}
    call = functools.partial(layer, statistics=statistics)
    got = jax.jit(jax.vmap(call, (axes,)))({**given, **two})
    assert called == ["fprop"]
    want = [call({**given, **{n: a[:, i] for n, a in two.items()}}) for i in range(2)]
    assert_near(got, jax.tree.map(lambda *a: jnp.stack(a), *want))


def test_a_mapped_filter_is_composed(called):
    given = operands()
    filters = jnp.stack([given["w"], given["w"] / 2])
    got = jax.vmap(lambda w: layer({**given, "w": w}, 3))(filters)
    want = [layer({**given, "w": w}, 3) for w in filters]
    assert_near(got, jax.tree.map(lambda *a: jnp.stack(a), *want))


@pytest.mark.parametrize("statistics", [None, "channels", 3])
@pytest.mark.parametrize("by_sample", [True, False])
def test_a_sharded_batch_stays_so(called, statistics, by_sample):
    mesh = Mesh(np.array(jax.devices()[:4]), ("batch",))
    given = operands(by_sample)
    of_factors = P("batch") if by_sample else P()
    specs = [P("batch"), P(), of_factors, of_factors, P(), P("batch")]
    names = list(given)
    placed = dict(zip(names, put(mesh, given.values(), *specs), strict=True))
    call = functools.partial(layer, statistics=statistics)
    want = composed(call, given)
    compiled, got = compiled_and_result(call, (placed,))
    assert_near(got, want)
    y = jax.tree.leaves(got)[0]
    assert y.sharding.is_equivalent_to(placed["x"].sharding, y.ndim)
    by_channel = {"all-reduce"} if statistics == "channels" else set()
    assert collectives(compiled) == by_channel
    grad = jax.grad(functools.partial(loss, statistics=statistics))
    compiled, got = compiled_and_result(grad, (placed,))
    assert_near(got, composed(grad, given))
    assert collectives(compiled) == {"all-reduce"}
    for name in ("x", "residual"):
        assert got[name].sharding.is_equivalent_to(placed[name].sharding, 4)


def test_within_a_shard_map(called):
    mesh = Mesh(np.array(jax.devices()[:4]), ("batch",))
    given = operands()
    specs = {name: P("batch") for name in given} | {"w": P(), "bias": P()}

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(specs,), out_specs=P())
    def total(given):
        return jax.lax.psum(loss(given, 3), "batch")

    grad = jax.grad(total)
    rows = jcb.explain(grad, given, platform="cpu")
    assert {row.op for row in rows} == {"fprop", "bgrad", "dgrad", "wgrad"}
    assert_near(jax.jit(grad)(given), composed(jax.grad(loss), given, 3))


def test_a_policy_for_checkpoints_keeps_the_result(called):
    given = operands()
    plain = jax.checkpoint(loss)
    kept = jax.checkpoint(loss, policy=jcb.convs_saveable)
    for function, count in ((plain, 2), (kept, 1)):
        step = jax.grad(lambda given, f=function: jnp.exp(f(given) / 1e9))
        rows = jcb.explain(step, given, platform="cpu")
        assert [row.op for row in rows].count("fprop") == count


def test_what_is_measured(called, monkeypatch):
    """wgrad beside the kernels; all three operations where nothing is one kernel."""
    given = operands()
    step = jax.grad(functools.partial(loss, statistics="channels"))

    def operations():
        return [problem.op for problem in tune.problems_of(step, given)]

    monkeypatch.setattr(norm_act_parts, "plan", lambda *_: PLAN)
    assert operations() == ["wgrad"]
    monkeypatch.setattr(norm_act_parts, "plan", lambda *_: None)
    assert sorted(operations()) == ["dgrad", "fprop", "wgrad"]
