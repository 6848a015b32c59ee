# SPDX-License-Identifier: Apache-2.0
"""Hopper's kernels for few outputs, one tile a block: exact, whatever the tile."""

import pytest
import tiles
from promises import (
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_configurations_agree,
    assert_exact,
)
from test_implicit_gemm import EDGES, SAME, assert_runs_as, problem

# With the tiles that fprop and dgrad are given.
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

# The same in f32: taps of a row share their pixels in tiles of 64 channels.
WAVES_F32 = {
    "1x1": (problem(8, (14, 14), 256, 128, (1, 1)), "40x64", "56x64"),
    # Filters in one box a stage where channels are a multiple of 32, else in two.
    "1x1, half a tile": (problem(8, (14, 14), 132, 160, (1, 1)), "40x64", "40x64"),
    "1x1, channels past a box": (
        problem(8, (14, 14), 132, 100, (1, 1)),
        "40x64",
        "40x64",
    ),
    "1x1, two warpgroups": (
        problem(8, (14, 14), 136, 1000, (1, 1)),
        "72x128",
        "40x64",
    ),
    "1x1 strided": (
        problem(8, (15, 14), 200, 1024, (1, 1), (2, 2)),
        "56x64",
        "24x64",
    ),
    "3x3": (
        problem(8, (14, 15), 132, 200, (3, 3), padding=((1, 1), (2, 0))),
        "72x64",
        "56x64",
    ),
    "3x3 of short rows": (
        problem(8, (7, 7), 260, 516, (3, 3), padding=SAME),
        "56x64",
        "40x64",
    ),
    "3x3 dilated": (
        problem(3, (17, 26), 68, 72, (2, 3), padding=SAME, dilation=(2, 4)),
        "24x64",
        "40x64",
    ),
    "3x3 strided": (
        problem(8, (29, 28), 136, 192, (3, 3), (2, 2), SAME),
        "40x64",
        "64x64",
    ),
    "few channels of long sums": (
        WAVES["few channels of long sums"][0],
        "24x64",
        "104x64",
    ),
    "many pixels": (
        problem(4, (80, 50), 36, 40, (3, 3), padding=SAME),
        "208x64",
        "208x64",
    ),
}


DTYPES = {"bfloat16": WAVES, "float16": WAVES, "float32": WAVES_F32}
ALL = [(dtype, name) for dtype, waves in DTYPES.items() for name in waves]
TWO = [(dtype, name) for dtype, name in ALL if dtype != "float16"]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "name"), ALL)
def test_waves_are_exact(hopper, monkeypatch, dtype, name):
    case, *waves = DTYPES[dtype][name]
    tiles.given(monkeypatch, fprop=waves[0], dgrad=waves[1])
    assert_runs_as(case, *waves, dtype=dtype)
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "name"), TWO)
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, dtype, name):
    assert_batch_invariant(DTYPES[dtype][name][0], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "name"), TWO)
def test_a_hundred_runs_give_the_same_bits(hopper, dtype, name):
    assert_a_hundred_runs_agree(DTYPES[dtype][name][0], dtype)


CASES = [
    (dtype, name, case)
    for dtype in ("bfloat16", "float32")
    for name, case in {
        **EDGES,
        **{name: wave[0] for name, wave in DTYPES[dtype].items()},
    }.items()
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "case"),
    [pytest.param(dtype, case, id=f"{dtype}-{name}") for dtype, name, case in CASES],
)
def test_every_configuration_gives_the_same_bits(hopper, dtype, case):
    assert_configurations_agree(case, dtype)
