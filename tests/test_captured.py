# SPDX-License-Identifier: Apache-2.0
"""On CUDA every call is captured into a graph with its neighbours (GPU only)."""

import collections
import glob

import jax
import numpy as np
import pytest

import jax_convbatch as jc

LAYERS, CALLS = 8, 10

pytestmark = pytest.mark.gpu


def profiled(call, args, folder):
    """How often each GPU kernel ran, and each event with "Graph" on the host."""
    jax.block_until_ready([call(*args) for _ in range(3)])
    with jax.profiler.trace(str(folder)):
        jax.block_until_ready([call(*args) for _ in range(CALLS)])
    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    kernels, graphs = collections.Counter(), collections.Counter()
    for plane in jax.profiler.ProfileData.from_file(path).planes:
        for line in plane.lines:
            for event in line.events:
                if plane.name.startswith("/device:GPU"):
                    if line.name.startswith("Stream"):
                        kernels[event.name] += 1
                elif "Graph" in event.name:
                    graphs[event.name.split(" ")[0]] += 1
    return kernels, graphs


def stack(engine):
    def run(x, filters):
        for w in filters:
            x = jc.conv(x, w, algorithm=engine)
        return x

    return jax.jit(run)


@pytest.fixture
def arguments():
    rng = np.random.default_rng(0)
    with jax.default_device(jax.devices("cuda")[0]):
        x = jax.numpy.asarray(rng.standard_normal((8, 16, 16, 16), np.float32))
        w = rng.standard_normal((LAYERS, 3, 3, 16, 16), np.float32) / 12
        yield x, list(jax.numpy.asarray(w))


def test_a_stack_of_layers_is_one_graph_of_two_kernels_a_layer(arguments, tmp_path):
    kernels, graphs = profiled(stack("im2col_gemm"), arguments, tmp_path)
    assert graphs["cuGraphLaunch"] == CALLS, graphs
    assert sum(kernels.values()) == CALLS * LAYERS * 2, kernels


def test_a_stack_on_hopper_is_one_kernel_a_layer(arguments, tmp_path):
    if jax.devices("cuda")[0].compute_capability != "9.0":
        pytest.skip("not a Hopper GPU")
    kernels, graphs = profiled(stack("implicit_gemm"), arguments, tmp_path)
    assert graphs["cuGraphLaunch"] == CALLS, graphs
    assert sum(kernels.values()) == CALLS * LAYERS, kernels


def test_per_sample_launches_two_kernels_a_sample(arguments, tmp_path):
    kernels, _ = profiled(stack("per_sample"), arguments, tmp_path)
    assert sum(kernels.values()) == CALLS * LAYERS * 2 * arguments[0].shape[0], kernels


def test_a_training_step_of_layers_is_captured(arguments, tmp_path):
    def loss(filters, x):
        for w in filters:
            bias = w[0, 0, 0]
            x = jc.conv_bias_act(x, w, bias, activation="relu", algorithm="im2col_gemm")
        return (x**2).sum()

    step = jax.jit(jax.grad(loss))
    kernels, graphs = profiled(step, arguments[::-1], tmp_path)
    assert graphs["cuGraphLaunch"] >= CALLS, graphs
    assert any("Col2Im" in name for name in kernels), kernels
