# SPDX-License-Identifier: Apache-2.0
"""Layers on several GPUs of one kind: the same bits on each, and of all together.

They need two or more GPUs; `-m gpu` runs them where there are.
"""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from problems import normal, whole
from promises import bits
from sharded import assert_same, collectives, make_gpu_mesh, put

import jax_convbatch as jc

pytestmark = pytest.mark.gpu

# x of one sample, w, groups, dtype: a kernel of each kind, and layers whose backward
# pass is one call (whole, or where 2, 4 or 8 devices share the batch).
LAYERS = {
    "1x1": ((56, 56, 64), (1, 1, 64, 256), 1, "bfloat16"),
    "1x1 wide": ((14, 14, 256), (1, 1, 256, 1024), 1, "bfloat16"),
    "1x1 strided": ((28, 28, 512), (1, 1, 512, 256), 1, "bfloat16"),
    "3x3": ((14, 14, 256), (3, 3, 256, 256), 1, "bfloat16"),
    "3x3 windows": ((56, 56, 64), (3, 3, 64, 64), 1, "float16"),
    "3x3 strided": ((28, 28, 256), (3, 3, 256, 256), 1, "bfloat16"),
    "long sums": ((7, 7, 512), (3, 3, 512, 512), 1, "bfloat16"),
    "stem": ((112, 112, 3), (7, 7, 3, 64), 1, "bfloat16"),
    "f32": ((28, 28, 128), (3, 3, 128, 128), 1, "float32"),
    "small f32": ((14, 14, 16), (3, 3, 16, 32), 1, "float32"),
    "one channel": ((28, 28, 1), (3, 3, 1, 16), 1, "float32"),
    "depthwise": ((28, 28, 96), (3, 3, 1, 96), 96, "bfloat16"),
    "grouped": ((28, 28, 128), (3, 3, 4, 128), 32, "bfloat16"),
    "columns": ((9, 9, 5), (3, 3, 5, 7), 1, "float64"),
}
SAMPLES = 16


@pytest.fixture(scope="module")
def gpus():
    found = jax.devices("cuda")
    if len(found) < 2:
        pytest.skip("one GPU")
    return found


def operands(name, make=normal):
    shape, w, _, dtype = LAYERS[name]
    x = make(0, (SAMPLES, *shape), dtype)
    return [x, make(1, w, dtype) / 8, make(2, w[-1:], dtype)]


def step(name, x, w, bias):
    strides = 2 if "strided" in name or name == "stem" else 1

    def layer(x, w, bias):
        return jc.conv_bias_act(
            *(x, w, bias), strides=strides, groups=LAYERS[name][2], activation="relu"
        )

    y, pullback = jax.vjp(layer, x, w, bias)
    return y, *pullback(y)


def on(device, arrays):
    return [jax.device_put(a, device) for a in arrays]


@pytest.mark.parametrize("name", LAYERS)
def test_each_gpu_gives_the_same_bits(gpus, x64, name):
    args = operands(name)
    fun = jax.jit(functools.partial(step, name))
    results = [fun(*on(device, args)) for device in gpus]
    for device, found in zip(gpus, results, strict=True):
        for a, b in zip(found, results[0], strict=True):
            assert a.devices() == {device}
            np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("name", LAYERS)
def test_gpus_that_share_a_batch_add_up_dw_and_db_alone(gpus, x64, name):
    args = operands(name, functools.partial(whole, most=1))
    args[1] = args[1] * 8  # whole numbers
    fun = jax.jit(functools.partial(step, name))
    want = fun(*on(gpus[0], args))
    sharded = put(make_gpu_mesh(gpus), args, P("data"), P(), P())
    compiled = fun.lower(*sharded).compile()
    assert collectives(compiled) == {"all-reduce"}
    found = compiled(*sharded)
    assert_same(found[:2], want[:2])
    for a, b in zip(found[2:], want[2:], strict=True):
        # Each GPU's sum is rounded before they are added.
        bound = len(gpus) * jnp.finfo(b.dtype).eps * np.abs(oracle.float64(b)).max()
        np.testing.assert_allclose(*map(oracle.float64, (a, b)), rtol=0, atol=bound)


ROWS = [
    *("1x1", "1x1 strided", "3x3", "3x3 windows", "3x3 strided", "stem", "f32"),
    *("depthwise", "grouped"),
]


@pytest.mark.parametrize("name", ROWS)
def test_gpus_that_share_an_image_exchange_rows(gpus, name):
    args = operands(name, functools.partial(whole, most=1))
    args[1] = args[1] * 8  # whole numbers
    fun = jax.jit(functools.partial(step, name))
    want = fun(*on(gpus[0], args))
    sharded = put(make_gpu_mesh(gpus[:2]), args, P(None, "data"), P(), P())
    compiled = fun.lower(*sharded).compile()
    sent = set() if name.startswith("1x1") else {"collective-permute"}
    assert collectives(compiled) == {"all-reduce", *sent}
    found = compiled(*sharded)
    assert_same(found[:2], want[:2])
    for a, b in zip(found[2:], want[2:], strict=True):
        bound = 2 * jnp.finfo(b.dtype).eps * np.abs(oracle.float64(b)).max()
        np.testing.assert_allclose(*map(oracle.float64, (a, b)), rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["1x1", "1x1 strided", "3x3", "small f32"])
def test_a_gpu_makes_one_call_of_each_kind_for_its_part(gpus, name):
    """Of y, of dx, of dw and of the bias gradient."""
    mesh = make_gpu_mesh(gpus)
    sharded = put(mesh, operands(name), P("data"), P(), P())
    fun = jax.jit(functools.partial(step, name))
    text = fun.lower(*sharded).compile().as_text()
    calls = [line for line in text.splitlines() if "jax_convbatch_" in line]
    assert sum("custom-call" in line for line in calls) == 4, calls


def test_threads_of_all_gpus_at_once(gpus, x64):
    fun = {name: jax.jit(functools.partial(step, name)) for name in LAYERS}
    args = {name: operands(name) for name in LAYERS}
    want = {name: fun[name](*on(gpus[0], args[name])) for name in LAYERS}

    def work(i):
        device = gpus[i % len(gpus)]
        with jax.enable_x64(True):
            return [
                (name, fun[name](*on(device, args[name])))
                for name in [*LAYERS, *reversed(LAYERS)]
            ]

    with ThreadPoolExecutor(2 * len(gpus)) as pool:
        for results in pool.map(work, range(2 * len(gpus))):
            for name, found in results:
                for a, b in zip(found, want[name], strict=True):
                    np.testing.assert_array_equal(bits(a), bits(b))


def test_training_on_all_gpus_is_training_on_one(gpus):
    """Three steps of two layers; y and dx have the bits of one GPU in the first."""

    def loss(params, x):
        for w, b in params:
            x = jc.conv_bias_act(x, w, b, activation="relu")
        return jnp.mean(x.astype(jnp.float32) ** 2)

    @jax.jit
    def update(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    x = normal(0, (32, 14, 14, 64), "float32")
    params = [
        (normal(i, (3, 3, 64, 64), "float32") / 24, normal(9, (64,), "float32"))
        for i in (1, 2)
    ]
    mesh = make_gpu_mesh(gpus)
    (sharded,) = put(mesh, [x], P("data"))
    losses = []
    for data in (jax.device_put(x, gpus[0]), sharded):
        state, found = params, []
        for _ in range(3):
            value, state = update(state, data)
            found.append(float(value))
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert losses[0][2] < losses[0][0]
