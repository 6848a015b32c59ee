# SPDX-License-Identifier: Apache-2.0
"""Arrays of more than 2^31 elements: every index is 64-bit."""

import functools
import math
import os
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import whole

import jax_convbatch as jc


def free_memory():
    """Bytes; 0 where the system does not tell."""
    try:
        with open("/proc/meminfo") as file:
            (line,) = (line for line in file if line.startswith("MemAvailable"))
    except OSError:
        return 0
    return int(line.split()[1]) << 10


def needs(gigabytes):
    return pytest.mark.skipif(
        free_memory() < gigabytes << 30, reason=f"needs {gigabytes} GiB of free memory"
    )


def test_the_memory_of_a_long_filter_is_bounded():
    """Only the workspace may grow with outputs times taps, and it is planned."""
    x = whole(0, (1, 2**17, 1), "float32")
    w = whole(1, (2048, 1, 1), "float32")
    (row,) = jc.explain(jc.conv, x, w)
    before = peak()
    y = jax.jit(jc.conv)(x, w).block_until_ready()
    hidden = peak() - before - row.workspace_bytes
    assert hidden < 256 << 20, f"{hidden >> 20} MiB beside the workspace"
    want = np.convolve(np.pad(x[0, :, 0], (1023, 1024)), w[::-1, 0, 0], "valid")
    np.testing.assert_array_equal(y[0, :, 0], want)


def peak():
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# Runs a layer's three operations with 2 threads; prints what the process held
# besides its operands and results, in bytes. Columns would take 115 MiB.
HELD = """
import ctypes, re, jax, jax.numpy as jnp
import jax_convbatch as jc

def memory(name):
    text = open("/proc/self/status").read()
    return int(re.search(name + r":\\s+(\\d+)", text)[1]) << 10

x, w = jnp.ones((4, 112, 112, 64)), jnp.ones((3, 3, 64, 64))

def conv(x, w):
    return jc.conv(x, w, algorithm="ENGINE")

def dgrad(dy, w):
    return jax.linear_transpose(lambda x: conv(x, w), x)(dy)[0]

def wgrad(x, dy):
    return jax.linear_transpose(lambda w: conv(x, w), w)(dy)[0]

programs = [
    (conv, (x, w), x.nbytes), (dgrad, (x, w), x.nbytes), (wgrad, (x, x), w.nbytes)
]
for fun, operands, size in programs:
    program = jax.jit(fun).lower(*operands).compile()
    jax.block_until_ready(operands)
    ctypes.CDLL(None).malloc_trim(0)
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again
    jax.block_until_ready(program(*operands))
    print(memory("VmHWM") - before - size)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"), reason="the system does not tell"
)
@pytest.mark.parametrize("engine", ["implicit_gemm", "im2col_gemm"])
def test_implicit_gemm_on_the_cpu_takes_8_mib_a_thread(engine):
    environment = {"JAX_CONVBATCH_THREADS": "2", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", HELD.replace("ENGINE", engine)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    held = [int(line) for line in found.stdout.split()]
    assert len(held) == 3
    if engine == "implicit_gemm":
        assert all(bytes_held <= 2 * (8 << 20) for bytes_held in held), held
    else:  # what is printed is what is held: dgrad's columns, and wgrad's
        assert min(held[1:]) > 2 * (8 << 20), held


# The period divides no power of two: what wraps around meets other numbers.
PERIOD, WIDTH, CHANNELS = 8, 1000, 256
REPEATS = 2**31 // (PERIOD * WIDTH * CHANNELS) + 1


@needs(8)
def test_a_batch_of_more_than_2_31_elements():
    """x repeats a few samples, so y and dw are known from those alone."""
    x = jnp.asarray(whole(0, (PERIOD, WIDTH, CHANNELS), "bfloat16", most=1))
    w = jnp.asarray(whole(1, (1, CHANNELS, 2), "bfloat16", most=1))

    @jax.jit
    def fprop(x, w):
        x = jnp.broadcast_to(x, (REPEATS, *x.shape)).reshape(-1, *x.shape[1:])
        assert x.size > 2**31
        y = jc.conv(x, w, algorithm="im2col_gemm")
        return y.reshape(REPEATS, PERIOD, WIDTH, 2)

    y = fprop(x, w)
    want = jc.conv(x, w, algorithm="im2col_gemm")
    assert want.any()
    np.testing.assert_array_equal(y, jnp.broadcast_to(want, y.shape))


@needs(8)
def test_a_gradient_of_more_than_2_31_elements():
    dy = jnp.asarray(whole(0, (PERIOD, WIDTH, 1), "bfloat16", most=1))
    w = jnp.asarray(whole(1, (1, CHANNELS, 1), "bfloat16", most=1))

    def dgrad(dy):
        x = jax.ShapeDtypeStruct((len(dy), WIDTH, CHANNELS), "bfloat16")
        return jax.linear_transpose(lambda x: jc.conv(x, w), x)(dy)[0]

    @jax.jit
    def mismatches(dy):
        many = jnp.broadcast_to(dy, (REPEATS, *dy.shape)).reshape(-1, *dy.shape[1:])
        dx = dgrad(many)
        assert dx.size > 2**31
        parts = dx.reshape(REPEATS, PERIOD, WIDTH, CHANNELS) != want
        return parts.any((1, 2, 3))

    want = dgrad(dy)
    assert want.any()
    assert not mismatches(dy).any()


@needs(14)
@pytest.mark.skipif(
    "JAX_CONVBATCH_TEST_LARGE" not in os.environ,
    reason="takes 9 GiB; set JAX_CONVBATCH_TEST_LARGE to run it",
)
def test_one_sample_of_more_than_2_31_column_elements():
    taps, width = 2048, 2**20 + 2048
    x = whole(0, (1, width, 1), "float32")
    w = whole(1, (taps, 1, 1), "float32")
    y = jax.jit(lambda x, w: jc.conv(x, w, padding="VALID", algorithm="im2col_gemm"))(
        x, w
    )
    assert y.shape[1] * taps > 2**31
    want = np.correlate(x[0, :, 0], w[:, 0, 0], "valid")
    np.testing.assert_array_equal(y[0, :, 0], want)


# Shapes of one sample and of the filter, a layer for each path of the CUDA kernels.
LAYERS = {
    "columns": ("im2col_gemm", "bfloat16", (28, 28, 64), (3, 3, 64, 64), {}),
    "copied tiles": ("implicit_gemm", "bfloat16", (28, 28, 64), (3, 3, 64, 64), {}),
    "copied tiles, f32": ("implicit_gemm", "float32", (28, 28, 64), (3, 3, 64, 64), {}),
    "strided": (
        *("implicit_gemm", "bfloat16", (56, 56, 32), (3, 3, 32, 256)),
        dict(strides=2, padding=1),
    ),
    "padded tiles": ("auto", "bfloat16", (27, 27, 65), (3, 3, 65, 67), {}),
    "strips": (
        *("implicit_gemm", "bfloat16", (96, 96, 3), (7, 7, 3, 64)),
        dict(strides=2, padding=3),
    ),
    "depthwise": (
        *("implicit_gemm", "bfloat16", (56, 56, 64), (3, 3, 1, 64)),
        dict(groups=64),
    ),
    "groups": (
        *("implicit_gemm", "bfloat16", (56, 56, 64), (3, 3, 8, 64)),
        dict(groups=8),
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYERS)
def test_every_path_of_a_gpu_counts_beyond_2_31(hopper, name):
    """x and dy repeat a few samples, so all three results follow from those."""
    engine, dtype, image, filter_shape, kwargs = LAYERS[name]
    conv = functools.partial(jc.conv, **kwargs)
    few = (PERIOD, *image)
    y = jax.eval_shape(
        conv,
        jax.ShapeDtypeStruct(few, dtype),
        jax.ShapeDtypeStruct(filter_shape, dtype),
    )
    repeats = 2**31 // max(math.prod(few), y.size) + 1
    x, w, dy = (
        jnp.asarray(whole(i, shape, dtype, most=1))
        for i, shape in enumerate((few, filter_shape, y.shape))
    )

    def many(a):
        return jnp.broadcast_to(a, (repeats, *a.shape)).reshape(-1, *a.shape[1:])

    def repeated(a, want):
        return (a.reshape(repeats, *want.shape) == want).all()

    def all_three(x, w, dy, algorithm=engine):
        y, pullback = jax.vjp(functools.partial(conv, algorithm=algorithm), x, w)
        return y, *pullback(dy)

    @jax.jit
    def agree(x, w, dy, want, dw):
        x, dy = many(x), many(dy)
        assert max(x.size, dy.size) > 2**31
        y, dx, got = all_three(x, w, dy)
        return repeated(y, want[0]), repeated(dx, want[1]), (got == dw).all()

    want = jax.jit(all_three)(x, w, dy)
    assert all(a.any() for a in want)
    # float32 holds the sums of a filter's gradient; only the result is rounded.
    wide = [a.astype("float32") for a in (x, w, dy)]
    dw = repeats * all_three(*wide, algorithm="im2col_gemm")[2]
    assert abs(dw).max() < 2**24
    assert all(agree(x, w, dy, want, dw.astype(dtype)))
