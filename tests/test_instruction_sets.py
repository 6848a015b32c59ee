# SPDX-License-Identifier: Apache-2.0
"""The CPU's kernels for every instruction set that this processor has."""

import os
import subprocess
import sys

import pytest

# Prints what the module says of itself, then compares with the oracle.
PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import jax, numpy as np
from problems import Problem, exact, normal, run, whole
import oracle
import jax_convbatch as jc
from jax_convbatch._native import targets
problem = targets.problem("cpu")
print(problem or targets.instruction_set())
if problem:
    sys.exit()
jax.config.update("jax_enable_x64", True)
CASES = [
    ((2, 15, 17, 40), (3, 3, 40, 70), (1, 1), (1, 1), 1),
    ((2, 15, 17, 33), (5, 3, 33, 15), (2, 3), (1, 1), 1),
    ((2, 5, 7, 16), (4, 4, 4, 24), (1, 1), (2, 2), 4),
    ((2, 9, 9, 48), (3, 3, 1, 48), (2, 2), (1, 1), 48),
    ((1, 8, 8, 300), (1, 1, 300, 3), (1, 1), (1, 1), 1),
    ((1, 17, 19, 3), (7, 7, 3, 64), (2, 2), (1, 1), 1),
    ((2, 9, 10, 130), (3, 3, 130, 40), (1, 1), (1, 1), 1),
    # Few channels: places in the lanes, also of each group, and of columns.
    ((2, 7, 70, 1), (3, 3, 1, 1), (1, 1), (1, 1), 1),
    ((2, 9, 150, 2), (3, 5, 2, 7), (1, 1), (1, 1), 1),
    ((2, 9, 41, 3), (5, 4, 3, 2), (2, 3), (1, 2), 1),
    ((2, 9, 20, 6), (3, 3, 2, 3), (1, 2), (2, 1), 3),
    ((2, 70, 1, 2), (3, 3, 2, 1), (1, 1), (1, 1), 1),
    # Few in and many out; more channels out, or fewer, in each group.
    ((2, 9, 31, 1), (3, 3, 1, 37), (1, 1), (1, 1), 1),
    ((2, 9, 31, 3), (3, 2, 3, 16), (2, 2), (1, 1), 1),
    ((2, 9, 13, 17), (3, 3, 1, 34), (1, 1), (1, 1), 17),
    ((2, 9, 13, 12), (3, 3, 3, 20), (2, 1), (1, 2), 4),
    ((2, 9, 13, 24), (3, 3, 12, 10), (1, 1), (1, 1), 2),
    # wgrad of pixels as they lie.
    ((2, 15, 29, 64), (3, 3, 64, 96), (1, 1), (1, 1), 1),
    ((2, 13, 40, 64), (3, 5, 32, 64), (1, 2), (2, 3), 2),
    ((3, 6, 70, 17), (1, 2, 17, 64), (3, 2), (1, 1), 1),
    ((9, 7, 7, 48), (3, 9, 48, 160), (1, 1), (1, 1), 1),
    ((2, 9, 40, 5), (3, 7, 5, 64), (1, 3), (1, 1), 1),
    ((3, 11, 23, 9), (2, 3, 9, 96), (2, 1), (2, 1), 1),
    # Panels that are made while others are multiplied.
    ((8, 4, 4, 520), (2, 1, 520, 512), (1, 1), (1, 1), 1),
]
for x, w, strides, dilation, groups in CASES:
    conv = oracle.Conv(strides, ((1, 1),) * 2, dilation, (1, 1), groups)
    case = Problem(x, w, conv, ("NHWC", "HWIO", "NHWC"))
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        arrays = [whole(i, s, dtype, 1) for i, s in enumerate((case.x, case.w, case.y))]
        got = run(case, *arrays, algorithm="implicit_gemm")
        for a, b in zip(got, exact(case, *arrays), strict=True):
            np.testing.assert_array_equal(a, b.astype(a.dtype))

# A sample's y and dx have the same bits in any batch.
def y_and_dx(x, w, dy):
    conv = lambda x: jc.conv(x, w, strides=2, padding=1, algorithm="implicit_gemm")
    y, pullback = jax.vjp(conv, x)
    return y, *pullback(dy)
for channels, outputs in ((3, 70), (40, 70), (1, 40), (2, 5)):
    x, w, dy = (
        normal(i, shape, "float32")
        for i, shape in enumerate(
            [(5, 15, 17, channels), (3, 3, channels, outputs), (5, 8, 9, outputs)]
        )
    )
    for all, one in zip(y_and_dx(x, w, dy), y_and_dx(x[2:3], w, dy[2:3]), strict=True):
        np.testing.assert_array_equal(all[2:3], one)
"""


def run_with(isa):
    code = PROGRAM.format(folder=os.path.dirname(__file__))
    # How products are cut depends on the number of threads.
    environment = {"JAX_CONVBATCH_THREADS": "2", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment | {"JAX_CONVBATCH_ISA": isa},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_every_instruction_set_is_exact(isa):
    said = run_with(isa)
    if "this processor lacks" in said:
        pytest.skip(said)
    assert said == isa


def test_the_peak_is_that_of_multiply_adds():
    from jax_convbatch import _cpu

    single = double = 0.0
    # The best of a few: others may be using the processor.
    for _ in range(20):
        single = max(single, _cpu.peak("float32"))
        double = max(double, _cpu.peak("float64"))
        # A vector has twice as many single as double numbers.
        if 1e8 < double < single < 4 * double:
            return
    pytest.fail(f"float32 {single:g}, float64 {double:g} operations a second")


def test_an_unknown_instruction_set_is_named():
    assert (
        "JAX_CONVBATCH_ISA is 'mmx' and must be avx512, avx2 or portable"
        in run_with("mmx")
    )
