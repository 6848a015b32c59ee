# SPDX-License-Identifier: Apache-2.0
"""Images cut over devices: neighbours exchange rows, nobody gathers an image.

8 virtual devices. Whole numbers make every order of summation exact.
"""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from sharded import assert_same, assert_spec, collectives, compiled_and_result, put

import jax_convbatch as jc

ROWS = P(None, "data")
SMALL = functools.partial(whole, most=1)

# x, w and the keywords of a call whose images are cut into eight parts.
CALLS = {
    "3x3": ((2, 16, 5, 3), (3, 3, 3, 4), {}),
    "two neighbours' rows are all of theirs": ((2, 16, 5, 3), (5, 3, 3, 4), {}),
    "an even filter": ((2, 32, 5, 3), (4, 2, 3, 4), {}),
    "strided": ((2, 32, 6, 3), (3, 3, 3, 4), {"strides": 2}),
    "strided, seven taps": ((1, 64, 6, 3), (7, 7, 3, 4), {"strides": 2}),
    "all on one side": ((2, 32, 5, 3), (3, 3, 3, 4), {"padding": ((2, 0), (0, 1))}),
    "beyond the other side": ((2, 32, 5, 3), (3, 3, 3, 4), {"padding": ((-1, 3), 1)}),
    "dilated": ((2, 32, 6, 3), (3, 3, 3, 4), {"dilation": (2, 1)}),
    "groups": ((2, 16, 6, 8), (3, 3, 2, 8), {"groups": 4}),
    "depthwise": ((2, 16, 6, 8), (3, 3, 1, 8), {"groups": 8}),
    "input dilated": (
        *((2, 16, 5, 3), (3, 3, 3, 4)),
        {"input_dilation": (2, 1), "padding": ((1, 2), 1)},
    ),
    "one axis": ((2, 32, 3), (5, 3, 4), {}),
    "three axes": ((1, 16, 4, 5, 3), (3, 3, 3, 3, 4), {}),
    "sliced": ((4, 16, 5, 3), (3, 3, 3, 4), {"workspace_limit": 20_000}),
    "by columns": ((2, 16, 5, 3), (3, 3, 3, 4), {"algorithm": "im2col_gemm"}),
}


def operands(x, w, make=whole):
    return make(0, x, "float32"), make(1, w, "float32")


def gradients(conv):
    """y, dx and dw; the cotangent is y."""

    def fun(x, w):
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(y)

    return fun


@pytest.mark.parametrize("name", CALLS)
def test_images_stay_cut(mesh, name):
    x, w, kwargs = CALLS[name]
    args = operands(x, w)
    step = gradients(functools.partial(jc.conv, **{"padding": "SAME"} | kwargs))
    want = jax.jit(step)(*args)
    compiled, found = compiled_and_result(step, put(mesh, args, ROWS, P()))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, want)
    for array, spec in zip(found, (ROWS, ROWS, P()), strict=True):
        assert_spec(array, *spec)


def test_a_device_sends_its_neighbours_no_more_than_they_read(mesh):
    args = operands((2, 16, 5, 3), (3, 3, 3, 4))
    fun = functools.partial(jc.conv, padding="SAME")
    compiled, _ = compiled_and_result(fun, put(mesh, args, ROWS, P()))
    text = compiled.as_text()
    sent = [line for line in text.splitlines() if " collective-permute(" in line]
    assert len(sent) == 2 and all("f32[2,1,5,3]" in line for line in sent), sent


@pytest.mark.parametrize("taps, strides", [(1, 1), (1, 2), (2, 2), (3, 4)])
def test_patches_need_no_neighbour(mesh, taps, strides):
    args = operands((2, 32, 8, 3), (taps, taps, 3, 4))
    step = gradients(functools.partial(jc.conv, strides=strides))
    compiled, found = compiled_and_result(step, put(mesh, args, ROWS, P()))
    assert collectives(compiled) == {"all-reduce"}
    assert_same(found, jax.jit(step)(*args))


def test_upsampling_by_a_transposed_convolution_keeps_images_cut(mesh):
    args = operands((2, 16, 5, 3), (4, 4, 3, 4))
    step = gradients(functools.partial(jc.conv_transpose, strides=2, padding="SAME"))
    compiled, found = compiled_and_result(step, put(mesh, args, ROWS, P()))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, jax.jit(step)(*args))
    assert_spec(found[0], *ROWS)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rows_and_columns_at_once(mesh_2d, layout):
    """Corners come with the second exchange."""
    x, w = operands((2, 16, 8, 3), (5, 3, 3, 4))
    spec, numbers = P(None, "data", "model"), ("NHWC", "HWIO", "NHWC")
    if layout == "NCHW":
        x, spec = x.transpose(0, 3, 1, 2), P(None, None, "data", "model")
        numbers = ("NCHW", "HWIO", "NCHW")
    step = gradients(functools.partial(jc.conv, dimension_numbers=numbers))
    compiled, found = compiled_and_result(step, put(mesh_2d, (x, w), spec, P()))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, jax.jit(step)(x, w))
    assert_spec(found[0], *spec)


@pytest.mark.parametrize("axes", [("data", "model"), ("model", "data")])
def test_rows_are_cut_by_two_axes_in_either_order(mesh_2d, axes):
    """Devices that are neighbours on the image are not those of the mesh."""
    args = operands((2, 16, 5, 3), (3, 3, 3, 4))
    step = gradients(jc.conv)
    _, found = compiled_and_result(step, put(mesh_2d, args, P(None, axes), P()))
    assert_same(found, jax.jit(step)(*args))


WITH_ROWS = {
    "samples": (P("data", "model"), P()),
    "output channels": (P(None, "data"), P(None, None, None, "model")),
    "input channels": (P(None, "data", None, "model"), P(None, None, "model")),
    "over both": (P(None, ("data", "model")), P()),
}


@pytest.mark.parametrize("cut", WITH_ROWS)
def test_rows_beside_other_letters(mesh_2d, cut):
    args = operands((4, 16, 6, 8), (3, 3, 8, 4))
    step = gradients(jc.conv)
    compiled, found = compiled_and_result(step, put(mesh_2d, args, *WITH_ROWS[cut]))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, jax.jit(step)(*args))
    assert_spec(found[2], *WITH_ROWS[cut][1])


LAYERS = {
    "relu": {"activation": "relu"},
    "gelu": {"activation": "gelu"},
    "strided": {"activation": "relu", "strides": 2},
    "one tap": {"activation": "relu"},
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_images_cut(mesh, name, residual):
    kwargs = LAYERS[name]
    x, w = operands((2, 32, 6, 3), (1, 1, 3, 8) if name == "one tap" else (3, 3, 3, 8))
    shape = (2, 16, 3, 8) if name == "strided" else (2, 32, 6, 8)
    args = [x, w, whole(2, (8,), "float32")]
    specs = [ROWS, P(), P()]
    if residual:
        args, specs = [*args, whole(3, shape, "float32")], [*specs, ROWS]

    def layer(x, w, bias, residual=None):
        return jc.conv_bias_act(x, w, bias, residual=residual, **kwargs)

    def step(*args):
        y, pullback = jax.vjp(layer, *args)
        return y, *pullback(y)

    want = jax.jit(step)(*args)
    compiled, found = compiled_and_result(step, put(mesh, args, *specs))
    sent = set() if name == "one tap" else {"collective-permute"}
    assert collectives(compiled) == {"all-reduce", *sent}
    if name == "gelu":
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4), *(found, want)
        )
    else:
        assert_same(found, want)
    for array, spec in zip(found, (ROWS, *specs), strict=True):
        assert_spec(array, *spec)


def test_a_network_of_several_scales_gathers_nothing(mesh):
    """Down, up, a skip between: what is sent are rows at edges."""
    w = [SMALL(i, s, "float32") for i, s in enumerate(SCALES)]
    x = SMALL(9, (2, 64, 8, 3), "float32")

    def net(x, *w):
        first = jc.conv(x, w[0])
        low = jc.conv_bias_act(first, w[1], None, activation="relu", strides=2)
        low = jc.conv(low, w[2])
        return jc.conv_transpose(low, w[3], strides=2, padding="SAME") + first

    def step(*args):
        y, pullback = jax.vjp(net, *args)
        return y, *pullback(y / 2**10)

    args = [x, *w]
    compiled, found = compiled_and_result(step, put(mesh, args, ROWS, *[P()] * 4))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    for a, b in zip(found, jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


SCALES = [(3, 3, 3, 4), (3, 3, 4, 8), (3, 3, 8, 8), (4, 4, 8, 4)]

# Rows of x and y that do not lie side by side, or do not divide: parts that drift
# apart, and last ones that hang over.
RAGGED = {
    "VALID": ((2, 64, 5, 3), (3, 3, 3, 4), {"padding": "VALID"}),
    "VALID, strided": ((2, 64, 5, 3), (3, 3, 3, 4), {"padding": "VALID", "strides": 2}),
    "VALID, groups": (
        *((2, 64, 5, 4), (3, 3, 2, 4)),
        {"padding": "VALID", "groups": 2},
    ),
    "VALID, dilated": (
        *((2, 64, 5, 3), (3, 2, 3, 4)),
        {"padding": "VALID", "dilation": (2, 1)},
    ),
    "drifting": ((2, 72, 5, 3), (9, 3, 3, 4), {"padding": "VALID"}),
    "drifting the other way": ((2, 64, 5, 3), (3, 3, 3, 4), {"padding": ((5, 5), 1)}),
    "a device without y": ((2, 16, 5, 3), (3, 3, 3, 4), {"padding": "VALID"}),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_images_stay_cut(mesh, name):
    x, w, kwargs = RAGGED[name]
    args = operands(x, w)
    step = gradients(functools.partial(jc.conv, **kwargs))

    def gradients_alone(x, w):  # a result that is not cut into equal parts is whole
        return step(x, w)[1:]

    want = jax.jit(gradients_alone)(*args)
    compiled, found = compiled_and_result(gradients_alone, put(mesh, args, ROWS, P()))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    assert_same(found, want)
    assert_spec(found[0], *ROWS)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers_keep_ragged_images_cut(mesh, activation):
    """Three of them: 64 rows, 62, 60 and 58, with everything that a layer has."""
    x = normal(0, (2, 64, 5, 4), "float32")
    w = [normal(i, (3, 3, 4, 8), "float32") for i in (1, 2)]
    w.append(normal(3, (3, 3, 8, 8), "float32"))
    bias, scale = normal(4, (8,), "float32"), normal(5, (8,), "float32")

    def net(x, w, bias, scale):
        first = jc.conv(x, w[0], padding=((0, 0), 1))
        side = jc.conv(x, w[1], bias, padding=((0, 0), 1))
        kwargs = dict(activation=activation, residual=side, scale=scale)
        both = jc.conv_bias_act(first, w[2], bias, **kwargs)
        last = jc.conv_bias_act(
            both, w[2], bias, activation=activation, padding=((0, 0), 1)
        )
        return (last**2).mean()

    step = jax.value_and_grad(net, argnums=(0, 1, 2, 3))
    args = (x, w, bias, scale)
    want = jax.jit(step)(*args)
    here = jax.device_put(x, NamedSharding(mesh, ROWS))
    rest = jax.device_put(args[1:], NamedSharding(mesh, P()))
    compiled, found = compiled_and_result(step, (here, *rest))
    assert collectives(compiled) == {"collective-permute", "all-reduce"}
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


def test_what_lies_past_the_last_row_reaches_no_sum(mesh):
    """It is infinite here: one over zeros that are there for the sake of the shape."""
    x = np.abs(whole(0, (2, 64, 5, 3), "float32")) + 1
    w1, w2 = np.ones((3, 3, 3, 4), "f4"), whole(1, (3, 3, 4, 4), "float32")
    bias = whole(2, (4,), "float32")

    def step(x, w1, w2, bias):
        h = 1 / jc.conv(x, w1, padding=((0, 0), 1))
        y = jc.conv_bias_act(h, w2, bias, activation="gelu", padding=((0, 0), 1))
        return (y**2).mean()

    step = jax.jit(jax.grad(step, argnums=(0, 1, 2, 3)))
    args = (x, w1, w2, bias)
    for a, b in zip(
        step(*put(mesh, args, ROWS, P(), P(), P())), step(*args), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max())


# What neighbours alone cannot give is gathered, and right all the same.
GATHERED = {
    "a filter over three parts": ((2, 16, 5, 3), (7, 3, 3, 4), {}),
    "drifting beyond the neighbour": (
        *((2, 24, 5, 3), (5, 3, 3, 4)),
        {"padding": "VALID"},
    ),
    "parts that begin at other phases": ((2, 24, 5, 3), (3, 3, 3, 4), {"strides": 2}),
    "strided and input dilated": (
        *((2, 16, 5, 3), (3, 3, 3, 4)),
        {"strides": 2, "input_dilation": 2, "padding": ((1, 1), (1, 1))},
    ),
}


@pytest.mark.parametrize("name", GATHERED)
def test_what_cannot_be_cut_gives_the_same_numbers(mesh, name):
    x, w, kwargs = GATHERED[name]
    args = operands(x, w)
    step = jax.jit(gradients(functools.partial(jc.conv, **kwargs)))
    assert_same(step(*put(mesh, args, ROWS, P())), step(*args))


@settings(max_examples=60)
@given(st.data())
def test_any_axis_that_is_cut_gives_the_same_numbers(data):
    parts = data.draw(st.sampled_from([2, 3, 4]), "parts")
    stride, dilation = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    taps = data.draw(st.integers(1, 5), "taps")
    spread = data.draw(st.integers(1, 2), "filter dilation")
    rows = parts * data.draw(st.integers(1, 4), "rows of a part")
    size, out = rows * stride, rows * dilation
    padded = (out - 1) * stride + (taps - 1) * spread + 1
    both = padded - ((size - 1) * dilation + 1)
    low = data.draw(st.integers(min(both, 0) - 2, max(both, 0) + 2), "low padding")
    high = both - low + data.draw(st.integers(-6, 6), "more high padding")
    kwargs = dict(
        strides=stride,
        input_dilation=dilation,
        dilation=spread,
        padding=((low, high),),
    )
    args = operands((2, size, 2), (taps, 2, 3), SMALL)
    step = jax.jit(gradients(functools.partial(jc.conv, **kwargs)))
    mesh = jax.sharding.Mesh(jax.devices()[:parts], "data")
    assert_same(step(*put(mesh, args, ROWS, P())), step(*args))


@settings(max_examples=40)
@given(st.data())
def test_any_network_without_padding_gives_the_same_numbers(data):
    """Two layers: what the second has is ragged before it begins."""
    parts = data.draw(st.sampled_from([2, 3, 4]), "parts")
    rows = parts * data.draw(st.integers(2, 8), "rows of a part")
    taps = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=2), "taps")
    strides = data.draw(st.lists(st.integers(1, 2), min_size=2, max_size=2), "strides")

    def step(x, w1, w2, bias):
        def net(x, w1, w2, bias):
            y = jc.conv(x, w1, strides=strides[0], padding="VALID")
            options = dict(activation="relu", padding="VALID")
            return jc.conv_bias_act(y, w2, bias, strides=strides[1], **options)

        y, pullback = jax.vjp(net, x, w1, w2, bias)
        return y, *pullback(jax.numpy.ones_like(y))

    args = [SMALL(0, (2, rows, 2), "float32"), SMALL(1, (taps[0], 2, 3), "float32")]
    args += [SMALL(2, (taps[1], 3, 8), "float32"), SMALL(3, (8,), "float32")]
    mesh = jax.sharding.Mesh(jax.devices()[:parts], "data")
    step = jax.jit(step)
    assert_same(step(*put(mesh, args, ROWS, P(), P(), P())), step(*args))
