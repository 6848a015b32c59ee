# SPDX-License-Identifier: Apache-2.0
"""The engine cudnn on a GPU: values, layers, limits, captured graphs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from problems import Problem, exact, normal, problems, run, whole
from promises import arrays, assert_a_hundred_runs_agree, bits
from test_captured import CALLS, profiled

import jax_convbatch as jc
from jax_convbatch._layers import activations
from jax_convbatch._native import targets

pytestmark = pytest.mark.gpu

HALVES = ("bfloat16", "float16")
DTYPES = (*HALVES, "float32", "float64")


@pytest.fixture(autouse=True)
def on_cuda():
    with jax.default_device(jax.devices("cuda")[0]):
        if problem := targets.cudnn_problem():
            pytest.skip(problem)
        yield


def case(x, w, stride=1, pad=0, dilation=1, input_dilation=1, groups=1):
    """A problem whose axes are all alike; `pad` is a number or (low, high)."""
    rank = len(x) - 2
    pads = pad if isinstance(pad, tuple) else (pad, pad)
    conv = oracle.Conv(
        (stride,) * rank,
        (pads,) * rank,
        (input_dilation,) * rank,
        (dilation,) * rank,
        groups,
    )
    spatial = "DHW"[3 - rank :]
    specs = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    return Problem(x, w, conv, specs)


CASES = {
    "3x3": case((2, 14, 14, 32), (3, 3, 32, 64), pad=1),
    "strided": case((2, 15, 15, 32), (3, 3, 32, 64), stride=2, pad=1),
    "strided with a rest": case((2, 16, 16, 16), (3, 3, 16, 16), stride=2),
    "1x1": case((3, 8, 8, 64), (1, 1, 64, 32)),
    "strided 1x1": case((3, 9, 9, 64), (1, 1, 64, 32), stride=2),
    "stem": case((2, 32, 32, 3), (7, 7, 3, 16), stride=2, pad=3),
    "odd channels": case((2, 9, 9, 13), (3, 3, 13, 7), pad=1),
    "dilated": case((2, 17, 17, 16), (3, 3, 16, 16), dilation=2, pad=2),
    "asymmetric": case((2, 9, 9, 16), (3, 3, 16, 16), pad=(2, 0)),
    "negative": case((2, 12, 12, 8), (3, 3, 8, 8), pad=(-1, -2)),
    "transposed": case((2, 7, 7, 16), (4, 4, 16, 8), input_dilation=2, pad=2),
    "transposed groups": case((2, 7, 7, 16), (4, 4, 8, 24), 1, 2, 1, 2, 2),
    "strided transposed": case((2, 7, 7, 8), (3, 3, 8, 8), 2, 1, 1, 3),
    "groups": case((2, 10, 10, 32), (3, 3, 8, 64), pad=1, groups=4),
    "depthwise": case((2, 10, 10, 32), (3, 3, 1, 32), pad=1, groups=32),
    "1-D": case((4, 100, 16), (5, 16, 24), pad=2),
    "causal": case((4, 100, 32), (4, 1, 32), pad=(3, 0), groups=32),
    "3-D": case((2, 6, 7, 8, 8), (3, 3, 3, 8, 16), pad=1),
    "strided 3-D": case((2, 6, 8, 8, 8), (3, 3, 3, 8, 16), stride=2, pad=1),
    "depth in the batch": case((2, 6, 7, 8, 8), (1, 1, 1, 8, 16)),
}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_are_exact(name, dtype, x64):
    c = CASES[name]
    x, w, dy = arrays(c, functools.partial(whole, most=1), dtype)
    got = run(c, x, w, dy, algorithm="cudnn")
    for a, right in zip(got, exact(c, x, w, dy), strict=True):
        np.testing.assert_array_equal(a, right.astype(a.dtype))


@given(problem=problems(ranks=(1, 2, 3), empty=False))
@settings(max_examples=60)
def test_any_problem_is_exact(problem):
    x, w, dy = arrays(problem, functools.partial(whole, most=1), "bfloat16")
    got = run(problem, x, w, dy, algorithm="cudnn")
    for a, right in zip(got, exact(problem, x, w, dy), strict=True):
        np.testing.assert_array_equal(a, right.astype(a.dtype))


@pytest.mark.parametrize("precision, bound", [(None, 1e-3), ("high", 3e-6)])
@pytest.mark.parametrize("name", ["3x3", "strided", "transposed", "3-D", "negative"])
def test_f32_is_as_precise_as_it_is_asked_to_be(name, precision, bound):
    c = CASES[name]
    x, w, dy = arrays(c, normal, "float32")
    levels = [precision] if precision is None else [precision, "highest"]
    for level in levels:
        got = run(c, x, w, dy, algorithm="cudnn", precision=level)
        for a, right in zip(got, exact(c, x, w, dy), strict=True):
            error = np.linalg.norm(oracle.float64(a) - right) / np.linalg.norm(right)
            assert error < bound, (level, error)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_result_may_be_wider(dtype):
    c = CASES["3x3"]
    x, w, _ = arrays(c, normal, dtype)
    conv = functools.partial(
        jc.conv_general_dilated, **c.kwargs, preferred_element_type=jnp.float32
    )
    got = jax.jit(functools.partial(conv, algorithm="cudnn"))(x, w)
    want = jax.jit(functools.partial(conv, algorithm="im2col_gemm"))(x, w)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("activation", ["identity", *activations.ACTIVATIONS])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rest", ["bias", "all"])
def test_a_layer_and_its_gradients(activation, dtype, rest):
    x, w = normal(0, (2, 9, 9, 16), dtype), normal(1, (3, 3, 16, 24), dtype) / 12
    more = {"bias": normal(2, (24,), dtype)}
    if rest == "all":
        more["scale"] = normal(3, (24,), dtype)
        more["residual"] = normal(4, (2, 9, 9, 24), dtype)

    def loss(algorithm, x, w, more):
        layer = functools.partial(jc.conv_bias_act, activation=activation)
        y = layer(x, w, algorithm=algorithm, precision="highest", **more)
        return (y.astype("float32") ** 2).sum(), y

    def all_of_it(algorithm):
        run = jax.value_and_grad(functools.partial(loss, algorithm), (0, 1, 2), True)
        return jax.tree.leaves(jax.jit(run)(x, w, more))

    size = 2e-2 if dtype == "bfloat16" else 1e-4
    for a, b in zip(all_of_it("cudnn"), all_of_it("im2col_gemm"), strict=True):
        a, b = oracle.float64(a), oracle.float64(b)
        assert np.linalg.norm(a - b) <= size * np.linalg.norm(b)


def test_explain_names_the_library_and_its_engine():
    c = CASES["3x3"]
    x, w, _ = arrays(c, normal, "bfloat16")
    conv = functools.partial(jc.conv, padding=1, algorithm="cudnn")
    (row,) = jc.explain(conv, x, w)
    assert row.engine == "cudnn"
    assert f"cuDNN {targets.cudnn_version()}, eng" in row.reason


def test_a_layer_of_bias_and_relu_is_one_kernel():
    c = CASES["3x3"]
    x, w, _ = arrays(c, normal, "bfloat16")
    layer = functools.partial(
        jc.conv_bias_act, padding=1, activation="relu", algorithm="cudnn"
    )
    (row,) = jc.explain(layer, x, w, normal(2, (64,), "bfloat16"))
    assert "bias, relu in the same kernel" in row.reason


@each_case
def test_the_workspace_keeps_to_its_limit(name):
    c = CASES[name]
    x, w, dy = arrays(c, functools.partial(whole, most=1), "bfloat16")
    want = exact(c, x, w, dy)
    for limit in (1 << 20, 1 << 17):

        def all_three(x, w, dy, limit=limit):
            conv = functools.partial(
                jc.conv_general_dilated, **c.kwargs, workspace_limit=limit
            )
            y, pullback = jax.vjp(conv, x, w)
            return y, *pullback(dy)

        rows = jc.explain(all_three, x, w, dy)
        assert all(row.workspace_bytes <= limit for row in rows if row.source == "rule")
        got = jax.jit(all_three)(x, w, dy)
        for a, right in zip(got, (want.y, want.dx, want.dw), strict=True):
            np.testing.assert_array_equal(oracle.float64(a), right)


def test_a_limit_that_nothing_fits_is_an_error_by_name():
    x, w = jnp.ones((64, 28, 28, 128)), jnp.ones((3, 3, 128, 128))

    def dw(dy):
        conv = functools.partial(jc.conv, algorithm="cudnn", workspace_limit=0)
        return jax.vjp(lambda w: conv(x, w), w)[1](dy)

    try:
        jax.block_until_ready(jax.jit(dw)(jnp.ones((64, 28, 28, 128))))
    except ValueError as error:
        assert "workspace" in str(error)


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_a_dtype_that_it_does_not_have(dtype):
    x, w = np.ones((1, 4, 4, 8), dtype), np.ones((3, 3, 8, 8), dtype)
    with pytest.raises((ValueError, TypeError), match=dtype):
        jax.jit(functools.partial(jc.conv, algorithm="cudnn"))(x, w)


def test_a_stack_of_layers_is_captured(tmp_path):
    x = normal(0, (8, 16, 16, 16), "float32")
    filters = list(normal(1, (8, 3, 3, 16, 16), "float32") / 12)

    def stack(x, filters):
        for w in filters:
            x = jc.conv(x, w, algorithm="cudnn")
        return x

    _, graphs = profiled(jax.jit(stack), jax.device_put((x, filters)), tmp_path)
    assert graphs["cuGraphLaunch"] == CALLS, graphs


def test_threads_may_plan_and_run_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def one(channels):
        x, w = normal(0, (2, 9, 9, channels)), normal(1, (3, 3, channels, 8))
        x, w = x.astype("float32"), w.astype("float32")
        run = jax.jit(functools.partial(jc.conv, algorithm="cudnn"))
        return np.asarray(run(x, w)), np.asarray(run(x, w))

    with ThreadPoolExecutor(8) as threads:
        for first, second in threads.map(one, range(8, 40, 2)):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["3x3", "strided", "depthwise", "3-D"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_hundred_runs_agree(name, dtype):
    assert_a_hundred_runs_agree(CASES[name], dtype, algorithm="cudnn")


@each_case
def test_the_default_engine_agrees(name):
    """Whatever "auto" takes, whole numbers are the same."""
    c = CASES[name]
    x, w, dy = arrays(c, functools.partial(whole, most=1), "bfloat16")
    for a, b in zip(run(c, x, w, dy), run(c, x, w, dy, algorithm="cudnn"), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
