# SPDX-License-Identifier: Apache-2.0
"""Large results on the CPU lie in huge pages where the system has them."""

import re
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from engines import ENGINES

import jax_convbatch as jc

SMAPS = Path("/proc/self/smaps")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ENABLED = SETTING.read_text() if SETTING.is_file() else "[never]"
# The C library maps anew what is larger than 32 MiB: no other test's advice is on it.
X = (1, 1024, 1024, 10)
W = (1, 1, 10, 10)


def advised(address):
    """Whether the mapping that holds it has been advised to have huge pages."""
    begin = end = 0
    for line in SMAPS.read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(part, 16) for part in head.groups())
        elif line.startswith("VmFlags:") and begin <= address < end:
            return "hg" in line.split()
    raise AssertionError(f"no mapping holds {address:#x}")


def middle(array):
    return array.unsafe_buffer_pointer() + array.nbytes // 2


def faults(call):
    """Pages that were new to the process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(call())
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


pytestmark = pytest.mark.skipif(
    not SETTING.is_file() or not SMAPS.is_file(),
    reason="the system has no huge pages",
)


def operands():
    return jnp.ones(X), jnp.ones(W)


def test_what_the_library_does_not_write_is_left_alone():
    assert not advised(middle(jax.jit(jnp.negative)(jnp.ones(X))))


@pytest.mark.parametrize("engine", ENGINES)
def test_results_of_a_convolution(engine):
    x, w = operands()

    def conv(x, w):
        return jc.conv(x, w, algorithm=engine)

    assert advised(middle(jax.jit(conv)(x, w)))
    dgrad = jax.jit(lambda dy: jax.linear_transpose(lambda x: conv(x, w), x)(dy)[0])
    assert advised(middle(dgrad(x)))


@pytest.mark.parametrize("engine", ENGINES)
def test_results_of_a_layer(engine):
    x, w = operands()

    def layer(residual):
        return jc.conv_bias_act(
            x, w, residual=residual, activation="silu", algorithm=engine
        )

    y, linear = jax.vjp(layer, x)  # keeps what the activation was applied to
    saved = [leaf for leaf in jax.tree.leaves(linear) if leaf.shape == X]
    saved = [leaf for leaf in saved if leaf is not x and leaf is not y]
    (dz,) = jax.jit(linear)(x)
    assert all(advised(middle(array)) for array in (y, dz, *saved)) and saved


@pytest.mark.skipif("[never]" in ENABLED, reason="huge pages are switched off")
def test_a_workspace():
    """Its pages are few: XLA maps this one anew for each call."""
    x, w = jnp.ones((2, 512, 512, 5)), jnp.ones((3, 3, 5, 1))
    program = jax.jit(lambda x: jc.conv(x, w, algorithm="im2col_gemm")).lower(x)
    program = program.compile()
    pages = program.memory_analysis().temp_size_in_bytes // resource.getpagesize()
    assert pages > 8192
    assert min(faults(lambda: program(x)) for _ in range(4)) < pages // 4
