# SPDX-License-Identifier: Apache-2.0
"""Windows of implicit_gemm: an image's pixels in shared memory once for all taps."""

import pytest
from problems import normal
from promises import arrays, assert_batch_invariant, assert_exact
from test_implicit_gemm import SAME, assert_runs_as, configs, problem

pytestmark = pytest.mark.gpu

TWO = ((2, 2), (2, 2))
# Problems that the window kernel takes, which reads each tile's pixels once: in
# whole rows (232 pixels a product) or in strips of eight columns (224).
WINDOWS = {
    "a tile an image": problem(70, (14, 14), 64, 64, (3, 3), padding=SAME),
    "two stages": problem(3, (110, 113), 64, 64, (3, 3), padding=SAME),
    "short, then by rows": problem(67, (23, 17), 40, 56, (3, 3), padding=SAME),
    "asymmetric": problem(70, (22, 18), 24, 64, (2, 4), padding=((1, 0), (0, 2))),
    "a row of taps": problem(40, (31, 33), 64, 24, (1, 5), padding=((0, 0), (2, 2))),
    "a column of taps": problem(40, (31, 33), 24, 64, (5, 1), padding=((2, 2), (0, 0))),
    "32 channels": problem(40, (30, 24), 32, 32, (3, 3), padding=SAME),
}
STRIPS = {
    "strips": problem(33, (28, 28), 64, 64, (3, 3), padding=SAME),
    "strips, then in pieces": problem(27, (56, 40), 64, 64, (3, 3), padding=SAME),
    "strips beyond the image": problem(31, (54, 39), 64, 40, (3, 3), padding=SAME),
    "strips of long rows": problem(9, (22, 304), 24, 64, (3, 3), padding=SAME),
    "strips, dilated": problem(
        70, (24, 21), 64, 64, (3, 3), padding=((2, 2), (1, 1)), dilation=(2, 1)
    ),
    "strips of 25 taps": problem(20, (35, 34), 48, 64, (5, 5), padding=TWO),
    "strips of 25 taps, 32 to 48": problem(35, (40, 16), 32, 48, (5, 5), padding=TWO),
    "strips of 25 taps, 24 to 40": problem(30, (20, 24), 24, 40, (5, 5), padding=TWO),
    "short strips of 48 channels": problem(33, (17, 32), 48, 48, (3, 3), padding=SAME),
    "strips of 24 channels, then in pieces": problem(
        27, (56, 40), 24, 48, (3, 3), padding=SAME
    ),
    "strips, two stages": problem(
        37, (26, 72), 24, 64, (3, 3), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
}
# Windows of up to 48 channels for more than 64 output channels, and in fprop those of
# up to 128 for 32.
WIDE = {
    "128 to 32": (
        problem(40, (28, 28), 128, 32, (3, 3), padding=SAME),
        ("224x64", "224x64"),
    ),
    "128 to 24, in pieces": (
        problem(24, (56, 24), 128, 24, (3, 3), padding=SAME),
        ("224x64", "224x64"),
    ),
    "80 to 32, whole rows": (
        problem(70, (14, 14), 80, 32, (3, 3), padding=SAME),
        ("232x64", "232x64"),
    ),
    "104 to 16, dilated": (
        problem(
            *(70, (24, 21), 104, 16, (3, 3)),
            padding=((2, 2), (1, 1)),
            dilation=(2, 1),
        ),
        ("232x64", ""),
    ),
    "40 to 96": (
        problem(40, (28, 32), 40, 96, (2, 4), padding=((1, 0), (0, 3))),
        ("224x64", ""),
    ),
    "48 to 200": (
        problem(40, (18, 33), 48, 200, (3, 3), padding=SAME),
        ("232x64", ""),
    ),
}
# fprop in strips, dgrad in rows.
BOTH = problem(70, (30, 24), 64, 64, (3, 3), padding=((-2, 1), (0, -1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*WINDOWS, *STRIPS])
def test_the_window_kernel_is_exact(hopper, name, dtype):
    kind = "232x64" if name in WINDOWS else "224x64"
    case = {**WINDOWS, **STRIPS}[name]
    assert_runs_as(case, kind, kind)
    assert_exact(case, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", WIDE)
def test_windows_of_many_channels_are_exact(hopper, name, dtype):
    case, kinds = WIDE[name]
    assert_runs_as(case, *kinds)
    assert_exact(case, dtype)


@pytest.mark.parametrize("name", ["128 to 32", "80 to 32, whole rows", "48 to 200"])
def test_windows_of_many_channels_give_the_bits_of_other_tiles(hopper, name):
    case, _ = WIDE[name]
    few = case._replace(x=(1, *case.x[1:]))
    rows = configs(few, *arrays(few, normal, "bfloat16"))
    assert not any("224x64" in row or "232x64" in row for row in rows), rows
    assert_batch_invariant(case, "bfloat16")


def test_windows_of_both_kinds_are_exact(hopper):
    assert_runs_as(BOTH, "224x64", "232x64")
    assert_exact(BOTH, "bfloat16")


@pytest.mark.parametrize(("kind", "size"), [("232x64", 14), ("224x64", 28)])
def test_windows_give_the_bits_of_other_tiles(hopper, kind, size):
    case = problem(256, (size, size), 64, 64, (3, 3), padding=SAME)
    assert_runs_as(case, kind, kind)
    assert_runs_as(case._replace(x=(1, size, size, 64)), "64x64", "64x64")
    assert_batch_invariant(case, "bfloat16")
