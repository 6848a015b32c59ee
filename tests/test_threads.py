# SPDX-License-Identifier: Apache-2.0
"""Jitted functions called by 8 threads at once: right values, and no deadlock."""

import functools
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import numpy as np
import pytest
from problems import normal

import jax_convbatch as jc

THREADS = 8
SECONDS = 120


def call_at_once(work):
    """work(i) from every thread, all started together; their results."""
    barrier = Barrier(THREADS)

    def wait_and_work(i):
        barrier.wait(SECONDS)
        return work(i)

    pool = ThreadPoolExecutor(THREADS)
    try:
        futures = [pool.submit(wait_and_work, i) for i in range(THREADS)]
        return [future.result(SECONDS) for future in futures]
    finally:
        # Does not wait for a thread that hangs: the test shall fail.
        pool.shutdown(wait=False, cancel_futures=True)


def step(x, w, bias, algorithm="auto"):
    def loss(*args):
        y = jc.conv_bias_act(*args, activation="relu", algorithm=algorithm)
        return (y**2).sum(), y

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(x, w, bias)


def arguments(seed, size=12):
    shapes = (4, size, size, 16), (3, 3, 16, 32), (32,)
    return [normal(seed + i, s, "float32") for i, s in enumerate(shapes)]


def assert_same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_one_jitted_function(engine):
    fun = jax.jit(functools.partial(step, algorithm=engine))
    data = [arguments(i) for i in range(THREADS)]
    want = [jax.tree.map(np.asarray, fun(*args)) for args in data]

    def work(i):
        return [jax.tree.map(np.asarray, fun(*data[i])) for _ in range(10)]

    for results, right in zip(call_at_once(work), want, strict=True):
        for got in results:
            assert_same(got, right)


def test_functions_that_are_still_being_compiled(platform):
    """Each thread traces, compiles and runs shapes of its own."""

    def work(i):
        args = arguments(i, size=5 + i)
        return jax.tree.map(np.asarray, jax.jit(lambda *a: step(*a))(*args))

    results = call_at_once(work)
    for i, got in enumerate(results):
        assert_same(got, jax.jit(step)(*arguments(i, size=5 + i)))


def test_many_calls_in_flight(platform):
    """Nobody waits for a result before the next call is made."""
    fun = jax.jit(step)
    data = arguments(0)
    want = jax.tree.map(np.asarray, fun(*data))
    results = call_at_once(lambda _: [fun(*data) for _ in range(10)])
    for got in jax.block_until_ready(results):
        for one in got:
            assert_same(one, want)


@pytest.mark.parametrize("count", [2, 8])
def test_independent_convolutions_of_one_program(platform, count):
    """XLA may run them at the same time."""
    w = normal(0, (3, 3, 16, 32), "float32")
    xs = [normal(1 + i, (2, 16, 16, 16), "float32") for i in range(count)]
    many = jax.jit(lambda xs: [jc.conv(x, w) for x in xs])
    want = [np.asarray(jc.conv(x, w)) for x in xs]
    for _ in range(5):
        assert_same(many(xs), want)


def strips(i):
    """Rows of an image."""
    return (2, 14, 10 + 6 * i, 3), (7, 7, 3, 64), "bfloat16", {"padding": 3}


def sweeps(i):
    """A row of the filter."""
    c = 64 + 64 * (i % 3)
    return (2, 14, 14, c), (3, 3, c, 3), "bfloat16", {"padding": 1}


def windows(i):
    """All taps of a filter, and as many stages as fit beside them."""
    taps = 2 + i % 2, 1 + i % 3
    return (34, 30, 30, 64), (*taps, 64, 64), "bfloat16", {"padding": "VALID"}


def depthwise(i):
    """Tiles that divide images well."""
    size, options = 5 + 3 * i, {"padding": 1, "groups": 40}
    return (64, size, size, 40), (3, 3, 1, 40), "float32", options


def tiles(i):
    """A tile and what its taps reach."""
    options = {"padding": 1 + i % 4, "dilation": 1 + i % 4}
    return (2, 14, 14, 16), (3, 3, 16, 16), "float32", options


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [strips, sweeps, windows, tiles, depthwise])
def test_geometries_that_share_a_kernel(hopper, kept):
    """Each needs shared memory as it keeps more or less there, and is given it."""
    calls, want = [], []
    for i in range(THREADS):
        x, w, dtype, options = kept(i)
        conv = jax.jit(functools.partial(jc.conv, algorithm="implicit_gemm", **options))
        calls.append(functools.partial(conv, normal(i, x, dtype), normal(1, w, dtype)))
        want.append(np.asarray(calls[i]()))
    results = call_at_once(lambda i: [calls[i]() for _ in range(50)])
    for got, right in zip(results, want, strict=True):
        assert_same(got, [right] * 50)
