# SPDX-License-Identifier: Apache-2.0
"""vmap is a loop, for every operand that may carry the new axis, and no copy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import whole

import jax_convbatch as jc
from jax_convbatch._primitives.bias import bias_grad, broadcast_bias

SIZE = 3

# x, w and keyword arguments of `conv`.
CONVS = {
    "plain": ((2, 5, 4, 4), (3, 2, 4, 6), {}),
    "grouped": ((2, 5, 4, 4), (3, 2, 2, 6), {"groups": 2}),
    "depthwise": ((2, 5, 4, 4), (3, 2, 1, 8), {"groups": 4}),
    "strided": (
        (2, 5, 4, 4),
        (3, 2, 4, 6),
        {"strides": (2, 1), "padding": ((1, 2), (-1, 1)), "dilation": (1, 2)},
    ),
    "channels first": (
        (2, 4, 5, 4),
        (6, 2, 3, 2),
        {"groups": 2, "dimension_numbers": ("NCHW", "OIHW", "NCHW")},
    ),
    "spatial first": (
        (5, 2, 4),
        (6, 4, 3),
        {"dimension_numbers": ("WNC", "OIW", "CWN")},
    ),
    "no spatial axes": ((2, 4), (4, 6), {}),
}
each_conv = pytest.mark.parametrize("conv", CONVS)


def make(conv):
    x, w, kwargs = CONVS[conv]
    return (
        whole(0, x, "float32"),
        whole(1, w, "float32"),
        functools.partial(jc.conv, **kwargs),
    )


def loop(fun, dims, args, out_axis=0):
    """What vmap is defined to be."""
    outs = []
    for i in range(SIZE):
        outs.append(
            fun(
                *(
                    a if d is None else np.take(a, i, d)
                    for a, d in zip(args, dims, strict=True)
                )
            )
        )
    return jax.tree.map(lambda *a: np.stack(a, out_axis), *outs)


def batched(array, seed, axis):
    """`array` with another of its shape before and after it."""
    if axis is None:
        return array
    axis %= array.ndim + 1
    shape = (*array.shape[:axis], SIZE, *array.shape[axis:])
    return whole(seed, shape, "float32")


def operations(fun, x, w):
    """fprop, dgrad and wgrad as functions of their two operands."""
    y = np.asarray(fun(x, w))

    def dgrad(dy, w):
        return jax.linear_transpose(lambda x: fun(x, w), x)(dy)[0]

    def wgrad(x, dy):
        return jax.linear_transpose(lambda w: fun(x, w), w)(dy)[0]

    return {"fprop": (fun, (x, w)), "dgrad": (dgrad, (y, w)), "wgrad": (wgrad, (x, y))}


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0), (1, -1), (-1, 1)])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@each_conv
def test_vmap_of_every_operation_is_a_loop(engine, conv, op, dims):
    x, w, fun = make(conv)
    fun, args = operations(functools.partial(fun, algorithm=engine), x, w)[op]
    args = [
        batched(a, 5 + i, d) for i, (a, d) in enumerate(zip(args, dims, strict=True))
    ]
    got = jax.jit(jax.vmap(fun, dims))(*args)
    np.testing.assert_array_equal(got, loop(jax.jit(fun), dims, args))


@pytest.mark.parametrize("out_axis", [1, -1])
def test_vmap_takes_out_axes(platform, out_axis):
    x, w, fun = make("grouped")
    x = batched(x, 5, 0)
    got = jax.vmap(fun, (0, None), out_axis)(x, w)
    want = np.moveaxis(loop(fun, (0, None), (x, w)), 0, out_axis)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("outer", "inner"),
    list(itertools.product([(0, None), (None, 0), (0, 0)], repeat=2)),
)
@each_conv
def test_nested_vmap(platform, conv, outer, inner):
    x, w, fun = make(conv)
    for dims in (inner, outer):
        x, w = (
            batched(a, 5 + i, d)
            for i, (a, d) in enumerate(zip((x, w), dims, strict=True))
        )
    once = jax.vmap(fun, inner)
    got = jax.jit(jax.vmap(once, outer))(x, w)
    np.testing.assert_array_equal(got, loop(jax.jit(once), outer, (x, w)))


LAYER_DIMS = [
    d for d in itertools.product((None, 0), repeat=3) if any(i == 0 for i in d)
]


@pytest.mark.parametrize("dims", LAYER_DIMS)
def test_vmap_of_a_layers_gradients(platform, dims):
    args = [
        batched(whole(i, s, "float32"), 5 + i, d)
        for i, (s, d) in enumerate(zip([(2, 5, 4), (3, 2, 6), (6,)], dims, strict=True))
    ]

    def loss(x, w, bias):
        y = jc.conv_bias_act(x, w, bias, activation="relu", groups=2)
        return (y**2).sum()

    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    got = jax.jit(jax.vmap(step, dims))(*args)
    want = loop(jax.jit(step), dims, args)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("numbers", [("NWC", "WIO", "NWC"), ("NCW", "IWO", "CWN")])
@pytest.mark.parametrize("dims", LAYER_DIMS)
def test_vmap_of_a_layers_tangent(platform, numbers, dims):
    """Channels of y before or behind the axis where vmap's is folded in, and at another
    one than those of w."""
    order = {"NWC": (0, 1, 2), "NCW": (0, 2, 1), "WIO": (0, 1, 2), "IWO": (1, 0, 2)}
    x = whole(0, (2, 5, 4), "float32").transpose(order[numbers[0]])
    w = whole(1, (3, 4, 6), "float32").transpose(order[numbers[1]])
    primals = x, w, whole(2, (6,), "float32")
    args = [
        batched(a, 5 + i, d) for i, (a, d) in enumerate(zip(primals, dims, strict=True))
    ]
    tangents = [whole(9 + i, a.shape, "float32") for i, a in enumerate(args)]
    layer = functools.partial(
        jc.conv_bias_act,
        activation="relu",
        scale=whole(3, (6,), "float32"),
        dimension_numbers=numbers,
    )

    def tangent(*both):
        return jax.jvp(layer, both[:3], both[3:])[1]

    got = jax.jit(jax.vmap(tangent, (*dims, *dims)))(*args, *tangents)
    want = loop(jax.jit(tangent), (*dims, *dims), (*args, *tangents))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dims", LAYER_DIMS)
def test_the_gradient_of_a_vmapped_layer_sums_over_what_is_shared(platform, dims):
    args = [
        batched(whole(i, s, "float32"), 5 + i, d)
        for i, (s, d) in enumerate(zip([(2, 5, 4), (3, 4, 6), (6,)], dims, strict=True))
    ]
    layer = functools.partial(jc.conv_bias_act, activation="relu")

    def loss(mapped, *args):
        return (mapped(*args) ** 2).sum()

    def unrolled(*args):
        return jnp.stack(
            [
                layer(
                    *(a if d is None else a[i] for a, d in zip(args, dims, strict=True))
                )
                for i in range(SIZE)
            ]
        )

    gradient = jax.grad(loss, argnums=(1, 2, 3))
    got = gradient(jax.vmap(layer, dims), *args)
    jax.tree.map(np.testing.assert_array_equal, got, gradient(unrolled, *args))


@pytest.mark.parametrize("dims", [(0, 0), (2, 1), (-1, 3), (1, None)])
@pytest.mark.parametrize(
    ("numbers", "shapes"),
    [
        (("HWNC", "HWIO", "NHWC"), ((5, 4, 2, 3), (3, 2, 3, 6), (2, 5, 4, 6))),
        (("CHWN", "IHWO", "NHWC"), ((3, 5, 4, 2), (3, 3, 2, 6), (2, 5, 4, 6))),
        (("NHWC", "HWIO", "CHWN"), ((2, 5, 4, 3), (3, 2, 3, 6), (6, 5, 4, 2))),
    ],
)
def test_vmap_of_a_layer_folds_the_residual_into_ys_samples(
    platform, numbers, shapes, dims
):
    x, w, residual = (whole(i, s, "float32") for i, s in enumerate(shapes))
    args = batched(x, 5, dims[0]), batched(residual, 6, dims[1])

    def layer(x, residual):
        return jc.conv_bias_act(
            *(x, w),
            residual=residual,
            activation="relu",
            dimension_numbers=numbers,
        )

    got = jax.jit(jax.vmap(layer, dims))(*args)
    np.testing.assert_array_equal(got, loop(jax.jit(layer), dims, args))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("channel", [0, 1, -1])
def test_vmap_of_the_bias_and_its_gradient(platform, axis, channel):
    dy = whole(0, (2, 3, 4, 5), "float32")
    one = tuple(np.delete(dy.shape, axis))
    total = functools.partial(bias_grad, kept=channel)
    want = np.stack([total(a) for a in np.moveaxis(dy, axis, 0)])
    np.testing.assert_array_equal(jax.vmap(total, axis)(dy), want)

    spread = functools.partial(broadcast_bias, shape=one, channel_axis=channel)
    bias = whole(1, (one[channel], 6), "float32")
    want = np.stack([spread(b) for b in bias.T], axis)
    np.testing.assert_array_equal(jax.vmap(spread, 1, axis)(bias), want)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
@each_conv
def test_vmap_over_nothing_gives_nothing(platform, conv, dims):
    x, w, fun = make(conv)
    y = fun(x, w)
    args = [
        a if d is None else np.zeros((0, *a.shape), a.dtype)
        for a, d in zip((x, w), dims, strict=True)
    ]
    mapped = jax.vmap(fun, dims)

    @jax.jit
    def results(*args):
        out, pullback = jax.vjp(mapped, *args)
        return out, *pullback(out)

    out, *gradients = results(*args)
    assert out.shape == (0, *y.shape)
    for got, like in zip(gradients, args, strict=True):
        np.testing.assert_array_equal(got, np.zeros_like(like))


# --- no copies -----------------------------------------------------------------


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr"),
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


COPIES = {"broadcast_in_dim", "concatenate", "gather", "dynamic_slice", "scan", "while"}


@pytest.mark.parametrize(
    ("dims", "geometry"),
    [
        ((0, None), "96x8x8x4 * 3x3x4x6 -> 96x8x8x6"),
        ((None, 0), "32x8x8x4 * 3x3x4x18 -> 32x8x8x18"),
        ((0, 0), "32x8x8x12 * 3x3x4x18 -> 32x8x8x18, pad 1, groups 3"),
    ],
)
def test_vmap_folds_into_one_convolution_and_copies_nothing(platform, dims, geometry):
    sizes = [(32, 8, 8, 4), (3, 3, 4, 6)]
    args = [
        jnp.zeros(s if d is None else (SIZE, *s))
        for s, d in zip(sizes, dims, strict=True)
    ]
    mapped = jax.vmap(jc.conv, dims)
    (row,) = jc.explain(mapped, *args, platform=platform)
    assert row.geometry.startswith(geometry)
    assert row.engine != "xla"
    names = {e.primitive.name for e in equations(jax.make_jaxpr(mapped)(*args).jaxpr)}
    assert not names & COPIES
    step = jax.grad(lambda *a: (mapped(*a) ** 2).sum(), argnums=(0, 1))
    ops = sorted(row.op for row in jc.explain(step, *args, platform=platform))
    assert ops == ["dgrad", "fprop", "wgrad"]
    for eqn in equations(jax.make_jaxpr(step)(*args).jaxpr):
        assert eqn.primitive.name not in COPIES - {"broadcast_in_dim"}
        if eqn.primitive.name == "broadcast_in_dim":
            assert not eqn.invars[0].aval.shape, "only a number may be repeated"


def test_vmap_with_an_axis_name_allows_collectives(platform):
    x, w, fun = make("plain")
    x = batched(x, 5, 0)
    got = jax.vmap(lambda x: jax.lax.psum(fun(x, w), "i"), axis_name="i")(x)
    want = loop(fun, (0, None), (x, w)).sum(0)
    np.testing.assert_array_equal(got, np.stack([want] * SIZE))
