"""Hopper's kernels for few outputs, one tile a block: exact, whatever the tile."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from problems import normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    bits,
)
from test_implicit_gemm import EDGES, SAME, assert_runs_as, problem
from test_transposed import params_of

from jax_convbatch import plan, primitives

# With the tiles that the rule has for fprop and dgrad.
WAVES = {
    "1x1": (problem(8, (14, 14), 256, 128, (1, 1)), "32x64", "48x64"),
    "1x1, two warpgroups": (
        problem(8, (14, 14), 136, 1024, (1, 1)),
        "104x128",
        "48x64",
    ),
    "1x1 strided": (
        problem(8, (15, 14), 200, 1024, (1, 1), (2, 2)),
        "56x64",
        "32x64",
    ),
    "3x3": (problem(8, (14, 14), 256, 200, (3, 3), padding=SAME), "48x64", "48x64"),
    "3x3 strided": (
        problem(8, (29, 28), 136, 192, (3, 3), (2, 2), SAME),
        "48x64",
        "64x128",
    ),
    "chunks": (
        problem(8, (7, 7), 512, 520, (3, 3), padding=SAME),
        "104x128",
        "56x128",
    ),
    "chunks, one warpgroup": (
        problem(2, (7, 7), 512, 1024, (3, 3), padding=SAME),
        "104x64",
        "56x64",
    ),
    "few channels of long sums": (
        problem(
            3, (23, 21), 520, 24, (3, 2), padding=((2, 2), (1, 2)), dilation=(2, 3)
        ),
        "32x64",
        "104x64",
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", WAVES)
def test_waves_are_exact(hopper, name, dtype):
    case, *tiles = WAVES[name]
    assert_runs_as(case, *tiles)
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WAVES)
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(WAVES[name][0], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", WAVES)
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(WAVES[name][0], "bfloat16")


CASES = {**EDGES, **{name: wave[0] for name, wave in WAVES.items()}}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_every_configuration_gives_the_same_bits(hopper, name):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "bfloat16")
    given = {"x": x, "w": w, "y": dy}
    params = params_of(case, x, w)
    for op in ("fprop", "dgrad"):
        want = None
        for config in plan.configs(
            "implicit_gemm", op, params.geometry, "bfloat16", "cuda"
        ):
            chosen = dataclasses.replace(
                params, algorithm="implicit_gemm", config=config
            )
            fun = functools.partial(
                primitives.bind, op, params=chosen, out_dtype=np.dtype(x.dtype)
            )
            operands = (given[role] for role in primitives.OPS[op].operands)
            got = bits(jax.jit(fun)(*operands))
            want = got if want is None else want
            np.testing.assert_array_equal(got, want, err_msg=f"{op} {config}")
