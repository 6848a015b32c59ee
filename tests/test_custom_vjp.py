# SPDX-License-Identifier: Apache-2.0
"""Rules written with `jax.custom_vjp` from the public operations, beside the built-in
layer: the same bits, kernels and collectives."""

import functools
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from problems import FLOATS, normal

import jax_convbatch as jc
from jax_convbatch import ops
from jax_convbatch._layers import activations

CASES = {
    "plain": ((4, 7, 6, 8), (3, 3, 8, 16), {}),
    "strided": ((4, 7, 6, 8), (3, 3, 8, 16), dict(strides=2, padding=((1, 0), (2, 1)))),
    "groups": ((4, 7, 6, 8), (3, 3, 4, 16), dict(groups=2, dilation=2)),
}
ARGNUMS = (0, 1, 2)


def layer_by_hand(name, **options):
    """activation(conv(x, w) + bias) with a backward pass of its own."""
    chosen = activations.lookup(name)
    keeps_z = chosen is not None and not chosen.saves_output

    @jax.custom_vjp
    def layer(x, w, bias):
        return jc.conv_bias_act(x, w, bias, activation=name, **options)

    def forward(x, w, bias):
        if keeps_z:
            z = jc.conv(x, w, bias, **options)
            return chosen.fn(z), (x, w, z)
        y = layer(x, w, bias)
        return y, (x, w, y)

    def backward(saved, dy):
        x, w, kept = saved
        dz, db = ops.act_bias_grad(name, kept, dy)
        dx = ops.dgrad(dz, w, x.shape, **options)
        return dx, ops.wgrad(x, dz, w.shape, **options), db

    layer.defvjp(forward, backward)
    return layer


def built_in(name, **options):
    return functools.partial(jc.conv_bias_act, activation=name, **options)


def arrays_of(case, dtype="float32"):
    x, w, options = CASES[case]
    shapes = x, w, w[-1:]
    arrays = [jnp.asarray(normal(i, s), dtype) for i, s in enumerate(shapes)]
    return arrays, options


def pulled_back(layer):
    """y and all cotangents, compiled."""

    @jax.jit
    def run(dy, *arrays):
        y, pullback = jax.vjp(layer, *arrays)
        return y, *pullback(dy)

    return run


def both(name, case, dtype):
    arrays, options = arrays_of(case, dtype)
    y = jax.eval_shape(built_in(name, **options), *arrays)
    dy = jnp.asarray(normal(9, y.shape), dtype)
    layers = layer_by_hand(name, **options), built_in(name, **options)
    return [pulled_back(layer)(dy, *arrays) for layer in layers]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [None, "relu", "tanh"])
def test_gradients_have_the_bits_of_the_built_in_layer(x64, name, dtype, case):
    got, want = both(name, case, dtype)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype == dtype
        assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_so_they_have_for_every_activation(name):
    got, want = both(name, "strided", "float32")
    # Of what keeps z, y is formed outside the kernel here.
    exact = activations.lookup(name).saves_output
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if exact or i > 0:
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["tanh", "silu"])
@pytest.mark.parametrize("case", CASES)
def test_rules_agree_with_finite_differences_to_second_order(x64, name, case):
    arrays, options = arrays_of(case, "float64")
    arrays[1] /= 10
    layer = jax.jit(layer_by_hand(name, **options))
    check_grads(layer, arrays, order=2, modes=["rev"], rtol=1e-5, atol=1e-5, eps=1e-5)


def test_they_run_the_kernels_of_the_built_in_layer():
    arrays, options = arrays_of("strided")

    def calls(layer):
        grad = jax.grad(lambda *a: layer(*a).sum(), ARGNUMS)
        text = jax.jit(grad).lower(*arrays).as_text()
        rows = jc.explain(jax.jit(grad), *arrays)
        names = sorted(re.findall(r"custom_call @jax_convbatch_(\w+)\(", text))
        return names, sorted((row.op, row.engine) for row in rows)

    mine, theirs = (
        calls(make("relu", **options)) for make in (layer_by_hand, built_in)
    )
    assert mine == theirs
    engine = "implicit_gemm"
    assert {(op, engine) for op in ("fprop", "dgrad", "wgrad")} < {*mine[1]}
    assert "act_bgrad" in mine[0]


@pytest.mark.parametrize("wrap", [jax.remat, lambda f: jax.remat(jax.jit(f))])
def test_under_remat(wrap):
    arrays, options = arrays_of("plain")
    layer = layer_by_hand("relu", **options)

    def gradients(of):
        return jax.jit(jax.grad(lambda *a: (of(*a) ** 2).sum(), ARGNUMS))(*arrays)

    jax.tree.map(
        np.testing.assert_array_equal, gradients(wrap(layer)), gradients(layer)
    )


def test_under_vmap_and_scan():
    (x, w, bias), options = arrays_of("plain")
    layer = layer_by_hand("relu", **options)
    xs = jnp.stack([x, 2 * x, x - 1])

    def gradients(of):
        return jax.jit(jax.grad(lambda *a: (of(*a) ** 2).sum(), ARGNUMS))(xs, w, bias)

    def scanned(xs, w, bias):
        return jax.lax.scan(lambda _, x: (_, layer(x, w, bias)), None, xs)[1]

    mapped = jax.vmap(layer, (0, None, None))
    want = gradients(lambda xs, w, bias: jnp.stack([layer(x, w, bias) for x in xs]))
    for of in (mapped, scanned):
        got = gradients(of)
        np.testing.assert_array_equal(got[0], want[0])
        for mine, theirs in zip(got[1:], want[1:], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-2)


def test_forward_mode_is_the_built_in_layers_alone():
    arrays, options = arrays_of("plain")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(layer_by_hand("relu", **options), arrays, arrays)
    jax.jvp(built_in("relu", **options), arrays, arrays)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_stays_where_it_is(kind):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*a)) for a in (("d",), ()))
    (x, w, bias), options = arrays_of("strided")

    def sharded(by_hand):
        if not by_hand:
            return built_in("relu", **options)
        if kind == AxisType.Auto:
            return layer_by_hand("relu", **options)
        return explicit_layer(split, whole, **options)

    def step(by_hand):
        layer = sharded(by_hand)
        grad = jax.jit(jax.grad(lambda *a: (layer(*a) ** 2).sum(), ARGNUMS))
        with jax.set_mesh(mesh):
            arrays = jax.device_put((x, w, bias), (split, whole, whole))
            compiled = grad.lower(*arrays).compile()
            text = compiled.as_text()
            collectives = {
                name: len(re.findall(rf"\b{name}(?:-start)?\(", text))
                for name in ("all-gather", "all-reduce", "all-to-all")
            }
            return compiled(*arrays), collectives

    (got, mine), (want, theirs) = step(True), step(False)
    assert mine == theirs and not mine["all-gather"] and mine["all-reduce"]
    assert got[0].sharding.is_equivalent_to(split, 4)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def explicit_layer(split, whole, **options):
    """Where shardings are in types, rules name those of their results."""

    @jax.custom_vjp
    def layer(x, w, bias):
        return jc.conv_bias_act(x, w, bias, activation="relu", **options)

    def forward(x, w, bias):
        y = layer(x, w, bias)
        return y, (x, w, y)

    def backward(saved, dy):
        x, w, y = saved
        dz, db = ops.act_bias_grad("relu", y, dy, bias_sharding=whole)
        dx = ops.dgrad(dz, w, x.shape, **options, out_sharding=split)
        dw = ops.wgrad(x, dz, w.shape, **options, out_sharding=whole)
        return dx, dw, db

    layer.defvjp(forward, backward)
    return layer


# --- what users read ----------------------------------------------------------------

ROOT = Path(__file__).parent.parent


def test_the_blocks_of_the_guide_run():
    guide = (ROOT / "docs" / "guide" / "custom_rules.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block, names)
    with jax.enable_x64(True), pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(names["layer"], names["arrays"], names["arrays"])


def test_the_example_shows_the_same_bits(capsys):
    example = runpy.run_path(str(ROOT / "examples" / "custom_rule.py"))
    example["main"]()
    printed = capsys.readouterr().out
    assert "agree with finite differences" in printed
    assert len(re.findall("bits.*: True$", printed, re.MULTILINE)) == 2
    (error,) = re.findall(r"off by at most ([\d.]+)%", printed)
    assert 0 < float(error) < 2
    assert re.search(r"^act_bgrad .* kernel ", printed, re.MULTILINE)
