# SPDX-License-Identifier: Apache-2.0
"""wgrad's choices of tiles on a Hopper GPU, where another was measured slower."""

import pytest
from fake_gpus import on
from test_rule_products import problem

from jax_convbatch._native import targets

SAME, CAUSAL = (1, 1), (2, 0)


def config(monkeypatch, dtype, n, sizes, c, k, taps, strides=None, pads=None):
    on(monkeypatch, "9.0")
    g = problem("wgrad", n, sizes, c, k, dtype, taps, strides, pads).geometry
    return targets.implicit_gemm_plans("wgrad", g, dtype)[0]["config"]


@pytest.mark.parametrize(
    ("where", "taken"),
    [
        # 132 blocks are out of step, and read large arrays again.
        ((1, (131072,), 1152, 1152, (1,)), "192x128/108py"),  # 616 us by 132
        # Small tiles copy more than others do.
        ((16, (80, 80), 128, 256, (3, 3), (2, 2)), "128x128/126px"),  # 38, now 27
        ((672, (9, 9), 128, 128, (3, 3)), "192x128/132py"),  # 38, now 28
        ((8, (56, 56), 64, 256, (1, 1)), "64x64/112c4"),  # 8.1 in clusters of 12
        # x costs most where a fifth of its boxes are zeros.
        (
            (1, (5, 180, 256), 1024, 2048, (3, 1, 1), None, (CAUSAL, (0, 0), (0, 0))),
            "128x256/132",  # 5388 by 256x128
        ),
        # Images or slices by fours, twos and ones fill multiplications.
        ((2, (64, 64), 320, 320, (3, 3)), "576x64/125"),  # 31.5 by others, now 25.8
        ((1, (64, 64), 320, 320, (3, 3)), "192x128/90c2"),  # not a row of 64 alone
        (
            (1, (5, 32, 256), 512, 512, (3, 3, 3), None, (CAUSAL, SAME, SAME)),
            "576x64/132",  # 890 by others, now 695
        ),
    ],
)
def test_choices_in_16_bits(native, monkeypatch, where, taken):
    for dtype in ("bfloat16", "float16"):
        assert config(monkeypatch, dtype, *where) == taken


@pytest.mark.parametrize(
    ("where", "taken"),
    [
        ((1, (131072,), 768, 896, (5,)), "256x128/105"),  # 4714 us by 132 blocks
        ((2, (65536,), 512, 640, (5,)), "256x128/100"),  # 2295 by 132
        ((1024, (16, 16), 192, 256, (5, 5)), "256x128/114"),  # 2675 by 132
        # Most of a box of x is zeros.
        (
            (64, (128, 128), 3, 768, (4, 4), (4, 4), ((0, 0), (0, 0))),
            "256x128/132",  # 125 by 128x64, now 88
        ),
    ],
)
def test_choices_in_f32(native, monkeypatch, where, taken):
    assert config(monkeypatch, "float32", *where) == taken
