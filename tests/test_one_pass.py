# SPDX-License-Identifier: Apache-2.0
"""Backward of 1x1 layers that make dz of dy: every mode, exact, same bits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from promises import bits

import jax_convbatch as jc
from jax_convbatch._layers import activations, fused, one_pass

# A slice of the input channels and several, up to eight, of every kernel.
CHANNELS = [
    *[(64, 64), (256, 64), (512, 64), (128, 128), (512, 128), (64, 256), (192, 256)],
    *[(128, 256), (512, 256), (1024, 256), (64, 512), (192, 512)],
]
# In two kernels that make dz of dy, from so many images of 14x14 on; dw in runs of the
# pixels that pairs of blocks add, and whole.
WIDE = {(256, 1024): 84, (512, 2048): 42, (256, 2048): 42, (2048, 2048): 42}
ALL = [*CHANNELS, *WIDE]


def images(c, k):
    """Tiles of 64 pixels: less than one, whole ones, some of the last; many a block."""
    if (c, k) in WIDE:
        return [(WIDE[c, k], 14, 14)]
    return [(1, 2, 1), (2, 8, 8), (5, 7, 18), (max(7, 26 * 64 // c), 31, 32)]


def operands(image, c, k, dtype, make, residual=True):
    shapes = [(*image, c), (1, 1, c, k), (k,), (*image, k)]
    x, w, bias, dy = (make(i, s, dtype) for i, s in enumerate(shapes))
    return [x, w, bias, *([make(4, dy.shape, dtype)] if residual else [])], dy


def strided_operands(image, c, k, dtype, make):
    """Of a stride of 2: x of twice the size."""
    args, dy = operands(image, c, k, dtype, make)
    n, height, width = image
    return [make(0, (n, 2 * height, 2 * width, c), dtype), *args[1:]], dy


def layer(x, w, bias, residual=None, **options):
    options = {"activation": "relu", **options}
    return jc.conv_bias_act(x, w, bias, residual=residual, **options)


def stock(x, w, bias, residual=0):
    conv = functools.partial(
        jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(conv(x, w, (1, 1), "VALID") + bias + residual)


def gradients(fun, args, dy):
    return jax.vjp(fun, *args)[1](dy)


def primitives_of(fun, *args):
    return [str(e.primitive) for e in jax.make_jaxpr(fun)(*args).eqns]


@pytest.fixture
def composed(monkeypatch):
    """As if there were the kernel, and with it the primitives, on every platform."""
    monkeypatch.setattr(one_pass, "workspace", lambda params, dtype: 0)
    monkeypatch.setattr(fused, "_keeps_signs", lambda *a, **k: True)


def of_gradients(fun):
    """A number that depends on every gradient of `fun`."""

    def total(*args):
        grads = jax.grad(lambda *a: jnp.sin(fun(*a)).sum(), range(len(args)))(*args)
        return sum(jnp.sin(g).sum() for g in grads)

    return total


MODES = {
    "reverse": lambda f, a: jax.grad(lambda *a: (f(*a) ** 2).sum(), range(len(a)))(*a),
    "forward": lambda f, a: jax.jvp(f, a, a),
    "reverse twice": lambda f, a: jax.grad(of_gradients(f), range(len(a)))(*a),
    "forward over reverse": lambda f, a: jax.jvp(of_gradients(f), a, a),
    "vmap of reverse": lambda f, a: jax.vmap(
        jax.grad(lambda *a: (f(*a) ** 2).sum(), range(len(a)))
    )(*(jnp.stack([b, 2 * b]) for b in a)),
    "remat": lambda f, a: jax.grad(
        lambda *a: (jax.checkpoint(f)(*a) ** 2).sum(), range(len(a))
    )(*a),
    "some": lambda f, a: jax.grad(lambda *a: (f(*a) ** 2).sum(), (1, 2))(*a),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_what_jax_lax_gives(composed, mode, residual):
    args, _ = operands((2, 3, 4), 8, 16, "float32", normal, residual)
    args = list(map(jnp.asarray, args))
    found, want = (MODES[mode](f, args) for f in (layer, stock))
    for a, b in zip(*map(jax.tree.leaves, (found, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("residual", [False, True])
def test_the_backward_pass_is_one_primitive(composed, residual):
    args, dy = operands((2, 3, 4), 8, 16, "float32", normal, residual)
    names = primitives_of(functools.partial(gradients, layer), args, dy)
    assert names == ["conv_layer", "conv_layer_cotangent"]


@pytest.mark.parametrize("mapped", [(), ("data",), ("data", "model")])
def test_samples_over_devices_give_what_one_device_gives(composed, mapped):
    args, dy = operands((16, 3, 4), 8, 16, "float32", functools.partial(whole, most=1))
    want = jax.jit(functools.partial(gradients, layer))(args, dy)
    over, same = P("data"), P()
    specs = (over, same, same, over)
    fun = layer
    names, types = ("data", "model"), (AxisType.Auto,) * 2
    mesh = jax.make_mesh((8, 1), names, types, devices=jax.devices("cpu"))
    if mapped:
        fun = jax.shard_map(
            layer, mesh=mesh, in_specs=specs, out_specs=over, axis_names={*mapped}
        )
    shardings = [NamedSharding(mesh, spec) for spec in (*specs, over)]
    *args, dy = map(jax.device_put, [*args, dy], shardings)
    found = jax.jit(functools.partial(gradients, fun))(args, dy)
    jax.tree.map(np.testing.assert_array_equal, found, want)


@pytest.mark.parametrize(
    "wanted", [w for n in (1, 2) for w in itertools.combinations(range(3), n)]
)
def test_a_gradient_that_is_not_asked_for_is_not_computed(composed, wanted):
    args, _ = operands((2, 3, 4), 8, 16, "float32", normal, residual=False)
    fun = jax.grad(lambda *a: layer(*a).sum(), wanted)
    names = primitives_of(fun, *args)
    assert "conv_layer_cotangent" not in names
    assert [name in names for name in ("conv_dgrad", "conv_wgrad")] == [
        i in wanted for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("kept", "ops", "one_call"),
    [
        ((0, 1, 2), ["fprop", "dgrad", "wgrad"], True),
        ((0, 1), ["fprop", "dgrad", "wgrad"], True),
        ((1, 2), ["fprop", "wgrad"], False),
        ((0,), ["fprop", "dgrad"], False),
    ],
)
def test_a_gradient_that_nobody_uses_is_not_computed(composed, kept, ops, one_call):
    """It is not one call then, of which nothing could be left out."""
    args, dy = operands((2, 3, 4), 8, 16, "float32", normal, residual=False)

    def some_gradients(args, dy):
        found = gradients(layer, args, dy)
        return [found[i] for i in kept]

    rows = jc.explain(some_gradients, args, dy, platform="cuda")
    assert [row.op for row in rows] == ops
    traced = jax.jit(some_gradients).trace(args, dy)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert ("jax_convbatch_implicit_gemm_layer_backward" in text) == one_call


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("c", "k"), ALL)
def test_whole_numbers_are_exact(hopper, c, k, dtype):
    make = functools.partial(whole, most=1)
    for image, count in itertools.product(images(c, k), (3, 4)):
        args, dy = operands(image, c, k, dtype, make)
        given = args[:count]
        names = primitives_of(functools.partial(gradients, layer), given, dy)
        assert "conv_layer_cotangent" in names
        found = jax.jit(functools.partial(gradients, layer))(given, dy)
        x, w, bias, *residual = map(oracle.float64, given)
        wide = x.reshape(-1, c), w[0, 0], oracle.float64(dy).reshape(-1, k)
        z = wide[0] @ wide[1] + bias + sum(r.reshape(-1, k) for r in residual)
        dz = np.where(z > 0, wide[2], 0)
        want = [dz @ wide[1].T, wide[0].T @ dz, dz.sum(0), dz][:count]
        for a, b, like in zip(found, want, given, strict=True):
            np.testing.assert_array_equal(a, b.reshape(like.shape).astype(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("c", "k"), ALL)
def test_whole_numbers_are_exact_at_a_stride_of_2(hopper, c, k, dtype):
    make = functools.partial(whole, most=1)
    fun = functools.partial(layer, strides=2, padding="VALID")
    for image in images(c, k)[-3:]:
        args, dy = strided_operands(image, c, k, dtype, make)
        names = primitives_of(functools.partial(gradients, fun), args, dy)
        assert "conv_layer_cotangent" in names
        found = jax.jit(functools.partial(gradients, fun))(args, dy)
        x, w, bias, residual = map(oracle.float64, args)
        read, wide = x[:, ::2, ::2].reshape(-1, c), oracle.float64(dy).reshape(-1, k)
        z = read @ w[0, 0] + bias + residual.reshape(-1, k)
        dz = np.where(z > 0, wide, 0)
        dx = np.zeros(x.shape)
        dx[:, ::2, ::2] = (dz @ w[0, 0].T).reshape(*dy.shape[:-1], c)
        want = [dx, read.T @ dz, dz.sum(0), dz]
        for a, b, like in zip(found, want, args, strict=True):
            np.testing.assert_array_equal(a, b.reshape(like.shape).astype(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("c", "k"), ALL)
def test_dx_has_the_bits_of_dgrad_in_every_batch_and_run(hopper, c, k, dtype):
    most = WIDE.get((c, k), 16)  # images
    args, dy = operands((most, 14, 14), c, k, dtype, normal)
    signs = activations.signs_of(layer(*args), 3)
    params = {}

    def bound(x, w, dy, signs):
        return one_pass.cotangent_p.bind(
            signs, x, w, dy, params=params["of"], residual=True
        )

    def parts(x, w, dy, signs):
        return one_pass._composed_cotangent(
            signs, x, w, dy, params=params["of"], residual=True
        )

    x, w = args[:2]
    bound, parts = jax.jit(bound), jax.jit(parts)
    for n in (most, 1, 3):
        eqns = jax.make_jaxpr(layer)(x[:n], *args[1:3], args[3][:n]).eqns
        params["of"] = next(e.params["params"] for e in eqns if "params" in e.params)
        has_kernel = one_pass.workspace(params["of"], x.dtype) is not None
        assert has_kernel == (n == most or (c, k) not in WIDE)
        given = x[:n], w, dy[:n], signs[:n]
        first = list(map(bits, bound(*given)))
        for _ in range(5):
            for a, b in zip(bound(*given), first, strict=True):
                np.testing.assert_array_equal(bits(a), b)
        dx, _, _, dz = map(bits, parts(*given))
        np.testing.assert_array_equal(first[0], dx)
        np.testing.assert_array_equal(first[3], dz)
        if n == most:
            whole_batch = first
        np.testing.assert_array_equal(first[0], whole_batch[0][:n])


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", [None, ("NCHW", "OIHW", "NCHW")])
def test_the_program_is_two_kernels_and_nothing_of_xlas(hopper, numbers):
    args, dy = operands((8, 14, 14), 64, 256, "bfloat16", normal)
    if numbers:
        last = [a.transpose(0, 3, 1, 2) for a in (args[0], args[3], dy)]
        args = [last[0], args[1].transpose(3, 2, 0, 1), args[2], last[1]]
        dy = last[2]
    fun = functools.partial(layer, dimension_numbers=numbers)
    text = jax.jit(functools.partial(gradients, fun)).lower(args, dy).compile()
    text = text.as_text()
    assert "layer_backward" in text and " convolution(" not in text
    assert "jax_convbatch_act_bgrad" not in text
    for op in ("reduce(", "multiply(", "select("):
        assert f" {op}" not in text


@pytest.mark.gpu
@pytest.mark.parametrize(("c", "k"), [(64, 256), (256, 1024), (1024, 256)])
def test_what_relu_drops_may_be_anything(hopper, c, k):
    """nan and infinities of dy where y is 0 reach nothing."""
    args, dy = operands((WIDE.get((c, k), 4), 14, 14), c, k, "bfloat16", normal)
    y = layer(*args)
    odd = jnp.where(y > 0, dy, jnp.where(dy > 0, jnp.nan, jnp.inf).astype(dy.dtype))
    step = jax.jit(functools.partial(gradients, layer))
    for a, b in zip(step(args, odd), step(args, dy), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.gpu
def test_explain_says_so(hopper):
    args, dy = operands((8, 14, 14), 64, 256, "bfloat16", normal)
    rows = jc.explain(functools.partial(gradients, layer), args, dy, platform="cuda")
    assert [row.op for row in rows] == ["fprop", "dgrad", "wgrad"]
    assert all(row.reason.endswith("in one call") for row in rows[1:])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"workspace_limit": 1 << 16},
        {"algorithm": "im2col_gemm"},
        {"activation": "leaky_relu"},
    ],
)
def test_other_layers_are_left_to_the_primitives(hopper, options):
    args, dy = operands((8, 14, 14), 64, 256, "bfloat16", normal)
    fun = functools.partial(layer, **options)
    names = primitives_of(functools.partial(gradients, fun), args, dy)
    assert "conv_layer_cotangent" not in names
