# SPDX-License-Identifier: Apache-2.0
"""Backward of a small layer with relu as one call of several kernels, on Hopper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import normal, whole
from promises import bits
from test_implicit_gemm import SAME, problem

import jax_convbatch as jc
from jax_convbatch._layers import act_grad, activations, one_pass
from jax_convbatch._primitives.primitives import bind

# Rows of dy that its threads share, whole and in part; sums in one piece, in clusters'
# and in chunks, dw by tiles and by cuBLAS; parts of x that no tap reaches.
CASES = {
    "3x3": problem(8, (28, 28), 128, 128, (3, 3), padding=SAME),
    "3x3, narrow": problem(8, (56, 56), 64, 64, (3, 3), padding=SAME),
    "3x3, long sums": problem(8, (7, 7), 512, 512, (3, 3), padding=SAME),
    "3x3, odd": problem(3, (9, 11), 72, 192, (3, 3), padding=SAME),
    "3x3s2": problem(8, (28, 28), 256, 256, (3, 3), (2, 2), SAME),
    "1x1": problem(8, (14, 14), 256, 1088, (1, 1)),
    "1x1, few pixels": problem(8, (7, 7), 2048, 576, (1, 1)),
    "1x1, slices": problem(8, (14, 14), 1024, 256, (1, 1)),
    "1x1s2": problem(8, (28, 28), 512, 1088, (1, 1), (2, 2)),
    "one pixel": problem(1, (1, 1), 64, 64, (1, 1)),
}
TYPES = ["bfloat16", "float16"]


def layer(case, *args, algorithm="auto"):
    x, w, bias, *residual = args
    conv = case.kwargs
    return jc.conv_bias_act(
        x,
        w,
        bias,
        activation="relu",
        residual=residual[0] if residual else None,
        strides=conv["window_strides"],
        padding=conv["padding"],
        algorithm=algorithm,
    )


def operands(case, dtype, make):
    """x, w, bias and residual; dy."""
    shapes = case.x, case.w, case.y[-1:], case.y, case.y
    *args, dy = (jnp.asarray(make(i, s, dtype)) for i, s in enumerate(shapes))
    return args, dy


def gradients(case, args, dy):
    return jax.vjp(functools.partial(layer, case), *args)[1](dy)


def params_of(case, args):
    eqns = jax.make_jaxpr(functools.partial(layer, case))(*args).eqns
    return next(e.params["params"] for e in eqns if "params" in e.params)


def stock(case, x, w, bias, residual=0):
    conv = jax.lax.conv_general_dilated(x, w, **case.kwargs, precision="highest")
    return jax.nn.relu(conv + bias + residual)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    """As XLA on the CPU has them: every sum is below 2^24."""
    case = CASES[name]
    args, dy = operands(case, "float32", functools.partial(whole, most=1))
    for count in (3, 4):
        with jax.default_device(jax.devices("cpu")[0]):
            arrays = map(np.asarray, args[:count])
            _, pullback = jax.vjp(functools.partial(stock, case), *arrays)
            want = pullback(np.asarray(dy))
        for dtype in TYPES:
            given = [a.astype(dtype) for a in (*args[:count], dy)]
            step = jax.jit(functools.partial(gradients, case))
            for a, b in zip(step(given[:-1], given[-1]), want, strict=True):
                np.testing.assert_array_equal(a, b.astype(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "saved"), [("bfloat16", "y"), ("float16", "signs")])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_its_parts_in_every_run(hopper, name, dtype, saved):
    """Run after run within captured programs and outside; dx and dz in every batch."""
    case = CASES[name]
    (x, w, *rest), dy = operands(case, dtype, normal)
    y = layer(case, x, w, *rest)
    kept = activations.signs_of(y, 3) if saved == "signs" else y
    first = None
    for n in dict.fromkeys((x.shape[0], 1)):
        options = {"params": params_of(case, (x[:n], w, rest[0], rest[1][:n]))}
        given = kept[:n], x[:n], w, dy[:n]
        assert one_pass.parts(options["params"], x.dtype)
        one = functools.partial(one_pass.cotangent_p.bind, residual=True, **options)

        def alone(kept, x, w, dy, options=options):
            dz, _ = act_grad.cotangent("relu", kept, dy, 3, bias=True)
            dx = bind("dgrad", dz, w, **options)
            return [dx, bind("wgrad", x, dz, **options), dz]

        found = list(map(bits, one(*given)))
        dx, dw, dz = map(bits, jax.jit(alone)(*given))
        for a, b in zip((found[0], found[1], found[3]), (dx, dw, dz), strict=True):
            np.testing.assert_array_equal(a, b)
        # Arrays of their own: XLA would see that the calls are one.
        many = jax.jit(lambda calls, one=one: [one(*given) for given in calls])
        calls = [jax.tree.map(jnp.copy, given) for _ in range(10)]
        for _ in range(10 if n > 1 else 1):
            for again in many(calls):
                for a, b in zip(again, found, strict=True):
                    np.testing.assert_array_equal(bits(a), b)
        first = first or found
        np.testing.assert_array_equal(found[0], first[0][:n])


@pytest.mark.gpu
@pytest.mark.parametrize("saved", ["y", "signs"])
def test_what_relu_drops_may_be_anything(hopper, saved):
    """nan and infinities of dy where y is 0 reach nothing."""
    case = CASES["1x1" if saved == "y" else "3x3"]
    args, dy = operands(case, "bfloat16", normal)
    y = layer(case, *args)
    odd = jnp.where(y > 0, dy, jnp.where(dy > 0, jnp.nan, jnp.inf).astype(dy.dtype))
    step = jax.jit(functools.partial(gradients, case))
    for a, b in zip(step(args, odd), step(args, dy), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.gpu
def test_the_program_is_two_calls_and_nothing_of_xlas(hopper):
    case = CASES["3x3"]
    args, dy = operands(case, "bfloat16", normal)
    step = jax.jit(functools.partial(gradients, case))
    text = step.lower(args, dy).compile().as_text()
    assert text.count('custom_call_target="jax_convbatch_') == 2
    assert "jax_convbatch_implicit_gemm_layer_parts" in text
    for op in ("convolution(", "reduce(", "multiply(", "select("):
        assert f" {op}" not in text


@pytest.mark.gpu
def test_explain_says_so(hopper):
    case = CASES["3x3"]
    args, dy = operands(case, "bfloat16", normal)
    rows = jc.explain(functools.partial(gradients, case), args, dy, platform="cuda")
    assert [row.op for row in rows] == ["fprop", "dgrad", "wgrad"]
    assert all("in one call" in row.reason for row in rows[1:])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"workspace_limit": 1 << 10},
        {"algorithm": "im2col_gemm"},
        {"activation": "leaky_relu"},
    ],
)
def test_other_layers_are_left_to_the_primitives(hopper, options):
    case = CASES["3x3"]
    args, _ = operands(case, "bfloat16", normal)
    fun = functools.partial(
        jc.conv_bias_act, **{"activation": "relu", "padding": "SAME", **options}
    )
    loss = jax.grad(lambda *a: fun(*a).astype("float32").sum(), (0, 1, 2))
    names = [str(e.primitive) for e in jax.make_jaxpr(loss)(*args[:3]).eqns]
    assert "conv_act_cotangent" in names and "conv_layer_cotangent" not in names
