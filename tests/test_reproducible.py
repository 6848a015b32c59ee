# SPDX-License-Identifier: Apache-2.0
"""The same bits: whatever the slice, the rest of the batch, the run, the threads."""

import functools
import hashlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOATS, normal, problems, run

import jax_convbatch as jc
from jax_convbatch._primitives.bias import bias_grad

LAYERS = {
    "3x3": dict(x=(20, 20, 16), w=(3, 3, 16, 24)),
    "strided": dict(x=(21, 20, 8), w=(5, 3, 8, 16), strides=2),
    "pointwise": dict(x=(14, 14, 64), w=(1, 1, 64, 48)),
    "strided pointwise": dict(x=(5, 50, 32), w=(1, 1, 32, 48), strides=2),
    "grouped": dict(x=(12, 12, 24), w=(3, 3, 8, 30), groups=3),
    "depthwise": dict(x=(12, 12, 24), w=(3, 3, 1, 24), groups=24),
    "channel multiplier": dict(x=(12, 12, 24), w=(3, 3, 1, 48), groups=24),
    "two channels": dict(x=(20, 150, 2), w=(3, 5, 2, 3)),
    "dilated": dict(
        x=(9, 11, 8), w=(3, 3, 8, 8), input_dilation=2, dilation=(1, 2), padding=2
    ),
    "3-D": dict(x=(4, 7, 7, 6), w=(3, 3, 3, 6, 8), padding=((1, 0),) * 3),
    "1-D": dict(x=(300, 5), w=(7, 5, 9)),
    # Sums of y and dx that are formed in several pieces, one after the other.
    "long sums": dict(x=(5, 6, 96), w=(3, 3, 96, 80)),
    "long sums, pointwise": dict(x=(4, 4, 1024), w=(1, 1, 1024, 640)),
    "longer sums": dict(x=(6, 6, 64), w=(5, 5, 64, 112)),
    "many pixels": dict(x=(31, 30, 16), w=(3, 3, 16, 24)),
}
each_layer = pytest.mark.parametrize("layer", LAYERS)


def make(layer, batch, dtype="float32"):
    kwargs = dict(LAYERS[layer])
    x = normal(0, (batch, *kwargs.pop("x")), dtype)
    w = normal(1, kwargs.pop("w"), dtype)
    bias = normal(2, w.shape[-1:], dtype)
    y = jax.eval_shape(functools.partial(jc.conv, **kwargs), x, w)
    return (x, w, bias, normal(3, y.shape, dtype)), kwargs


@functools.partial(jax.jit, static_argnames="options")
def _results(x, w, bias, dy, options):
    y, pullback = jax.vjp(
        functools.partial(jc.conv_bias_act, **dict(options)), x, w, bias
    )
    return dict(zip(("y", "dx", "dw", "db"), (y, *pullback(dy)), strict=True))


def results(args, **kwargs):
    """y, dx, dw and db of a layer as arrays of bits."""
    out = _results(*args, options=tuple(kwargs.items()))
    return {name: bits(a) for name, a in out.items()}


def bits(a):
    a = np.asarray(a)
    return a.view(f"u{a.itemsize}")


def assert_same_bits(got, want, names=("y", "dx", "dw", "db")):
    for name in names:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("dtype", FLOATS)
@each_layer
def test_columns_are_bit_identical_to_the_loop_over_samples(
    platform, x64, layer, dtype
):
    args, kwargs = make(layer, 6, dtype)
    want = results(args, algorithm="per_sample", **kwargs)
    assert_same_bits(results(args, algorithm="im2col_gemm", **kwargs), want)


@given(problem=problems(), dtype=st.sampled_from(FLOATS))
@settings(max_examples=60)
def test_any_problem_is_bit_identical_to_the_loop_over_samples(
    platform, x64, problem, dtype
):
    arrays = [
        normal(i, s, dtype) for i, s in enumerate((problem.x, problem.w, problem.y))
    ]
    want = run(problem, *arrays, algorithm="per_sample")
    got = run(problem, *arrays, algorithm="im2col_gemm")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@given(problem=problems(empty=False))
@settings(max_examples=25)
def test_the_last_sample_of_any_batch_has_the_bits_it_has_alone(engine, problem):
    many = problem._replace(x=(5, *problem.x[1:]))
    one = problem._replace(x=(1, *problem.x[1:]))
    x, w, dy = (normal(i, s, "float32") for i, s in enumerate((many.x, many.w, many.y)))
    want = run(many, x, w, dy, algorithm=engine)
    got = run(one, x[-1:], w, dy[-1:], algorithm=engine)
    np.testing.assert_array_equal(bits(got.y), bits(want.y)[-1:])
    np.testing.assert_array_equal(bits(got.dx), bits(want.dx)[-1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("C", "K", "groups"), [(8, 16, 1), (2, 3, 1), (8, 24, 8)])
def test_without_room_for_its_sums_wgrad_has_the_same_bits(dtype, C, K, groups):
    shapes = (9, 28, 28, C), (3, 3, C // groups, K), (9, 28, 28, K)
    x, w, dy = (jnp.asarray(normal(i, s, dtype)) for i, s in enumerate(shapes))

    def wgrad(limit):
        conv = functools.partial(jc.conv, workspace_limit=limit, groups=groups)
        return lambda x, w, dy: jax.vjp(lambda w: conv(x, w), w)[1](dy)[0]

    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        rows = [jc.explain(wgrad(limit), x, w, dy)[-1] for limit in (None, 0)]
        assert {row.engine for row in rows} == {"implicit_gemm"}
        assert rows[0].slice == rows[1].slice > 1
        assert rows[0].workspace_bytes > rows[1].workspace_bytes == 0
        got, want = (jax.jit(wgrad(limit))(x, w, dy) for limit in (0, None))
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_layer
def test_the_bits_do_not_depend_on_the_workspace_limit(platform, layer, dtype):
    args, kwargs = make(layer, 9, dtype)
    kwargs["algorithm"] = "im2col_gemm"
    grad = jax.grad(lambda *a: jc.conv_bias_act(*a, **kwargs).sum(), argnums=(0, 1))
    rows = [
        r for r in jc.explain(grad, *args[:3], platform=platform) if r.op != "bgrad"
    ]
    assert {r.slice for r in rows} == {9}, "the whole batch fits the default limit"
    want = results(args, **kwargs)
    most = max(r.workspace_bytes for r in rows)
    slices = set()
    for samples in (1, 2, 4, 8):
        limit = -(-most * samples // 9) + 4 * args[1].size + 4096
        options = {**kwargs, "workspace_limit": limit}
        step = jax.grad(
            lambda *a, o=options: jc.conv_bias_act(*a, **o).sum(), argnums=(0, 1)
        )
        slices |= {r.slice for r in jc.explain(step, *args[:3], platform=platform)}
        assert_same_bits(results(args, **options), want)
    assert len(slices) > 1 or most == 0, "no limit changed the slices"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_layer
def test_a_samples_bits_do_not_depend_on_its_batch(engine, layer, dtype):
    args, kwargs = make(layer, 33, dtype)
    want = results(args, algorithm=engine, **kwargs)
    x, w, bias, dy = args
    for first, count in ((0, 1), (32, 1), (5, 2), (7, 3), (25, 8), (0, 32)):
        part = slice(first, first + count)
        got = results((x[part], w, bias, dy[part]), algorithm=engine, **kwargs)
        for name in ("y", "dx"):
            np.testing.assert_array_equal(got[name], want[name][part], err_msg=name)


def test_a_samples_bits_do_not_depend_on_its_place(engine):
    (x, w, bias, dy), kwargs = make("3x3", 8)
    order = np.random.default_rng(0).permutation(8)
    want = results((x, w, bias, dy), algorithm=engine, **kwargs)
    got = results((x[order], w, bias, dy[order]), algorithm=engine, **kwargs)
    for name in ("y", "dx"):
        np.testing.assert_array_equal(got[name], want[name][order])


@each_layer
def test_every_run_gives_the_same_bits(engine, layer):
    args, kwargs = make(layer, 8)
    want = results(args, algorithm=engine, **kwargs)
    for _ in range(4):
        assert_same_bits(results(args, algorithm=engine, **kwargs), want)


@pytest.mark.parametrize("shape", [(50_000, 3), (7, 5000), (1 << 20, 1), (90_000, 64)])
def test_every_bias_gradient_gives_the_same_bits(platform, shape):
    dy = jnp.asarray(normal(0, shape, "float32"))
    want = bits(bias_grad(dy, -1))
    for _ in range(4):
        np.testing.assert_array_equal(bits(bias_grad(dy, -1)), want)


def test_jit_and_eager_give_the_same_bits(engine):
    args, kwargs = make("strided", 4)
    want = results(args, algorithm=engine, **kwargs)
    with jax.disable_jit():
        assert_same_bits(results(args, algorithm=engine, **kwargs), want)


def test_digests_are_of_sums_in_many_parts():
    args, _ = make("many pixels", 9)
    wgrad = jax.grad(lambda w: jc.conv(args[0], w, algorithm="implicit_gemm").sum())
    (row,) = (r for r in jc.explain(wgrad, args[1], platform="cpu") if r.op == "wgrad")
    assert row.slice == 8


# Prints a hash of the bits; run below with several numbers of threads.
DIGEST = """
import sys
sys.path.insert(0, {folder!r})
import test_reproducible
print(test_reproducible.digest())
"""


def digest():
    found = hashlib.sha256()
    for layer in LAYERS:
        for dtype in ("float32", "bfloat16"):
            args, kwargs = make(layer, 9, dtype)
            for array in results(args, **kwargs).values():
                found.update(array.tobytes())
    return found.hexdigest()


# The native threads are started by Python here, not by one of XLA's threads, which
# flush subnormal numbers to zero.
STARTED_BY_PYTHON = """
import jax.numpy as jnp
import jax_convbatch as jc
from jax_convbatch import _cpu
_cpu.peak("float32")
x = jnp.full((8, 112, 112, 16), 2.0**-140)
for engine in ("implicit_gemm", "im2col_gemm"):
    y = jc.conv(x, jnp.ones((1, 1, 16, 16)), algorithm=engine)
    print(len(set(y.ravel().tolist())))
"""


def test_every_thread_treats_subnormal_numbers_alike():
    output = subprocess.run(
        [sys.executable, "-c", STARTED_BY_PYTHON],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.split() == ["1", "1"]


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_the_bits_do_not_depend_on_the_number_of_threads(threads):
    output = subprocess.run(
        [sys.executable, "-c", DIGEST.format(folder=os.path.dirname(__file__))],
        env={**os.environ, "JAX_CONVBATCH_THREADS": threads, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.split()[-1] == digest()
